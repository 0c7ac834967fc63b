-- What the pipelines' user may do (the image has made it), and a shop to copy.
GRANT REPLICATION SLAVE, REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO cdc;
GRANT SELECT ON shop.* TO cdc;

CREATE DATABASE shop;
CREATE TABLE shop.customer (
    id BIGINT PRIMARY KEY AUTO_INCREMENT,
    name VARCHAR(100) NOT NULL,
    created TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
);
CREATE TABLE shop.orders (
    id BIGINT PRIMARY KEY AUTO_INCREMENT,
    customer BIGINT NOT NULL,
    amount DECIMAL(10, 2) NOT NULL,
    state ENUM('new', 'paid', 'sent') NOT NULL DEFAULT 'new'
);
SET SESSION cte_max_recursion_depth = 200000;
INSERT INTO shop.customer (name)
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT CONCAT('customer ', i) FROM n;
INSERT INTO shop.orders (customer, amount)
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
    SELECT 1 + i * 7919 MOD 20000, i MOD 1000 + 0.99 FROM n;
