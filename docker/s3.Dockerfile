# A gateway that speaks S3 and keeps objects as files. A bucket is a folder.
FROM golang:1.26-bookworm AS built
RUN CGO_ENABLED=0 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

FROM debian:bookworm-slim
COPY --from=built /go/bin/versitygw /usr/local/bin/versitygw
RUN mkdir -p /data/lake && chown -R 50000:0 /data
USER 50000:0
