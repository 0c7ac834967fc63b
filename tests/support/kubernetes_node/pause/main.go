// The first process of every pod: it holds the pod's namespaces and ends by a signal.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
