-- sysbench's table and index as its own `prepare` makes them, with explicit ids.
USE sbtest;
CREATE TABLE $table (
    id  INTEGER NOT NULL AUTO_INCREMENT,
    k   INTEGER DEFAULT '0' NOT NULL,
    c   CHAR(120) DEFAULT '' NOT NULL,
    pad CHAR(60) DEFAULT '' NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB;
INSERT INTO $table (id, k, c, pad)
SELECT seq,
       1 + FLOOR(RAND() * $rows),
       CONCAT_WS('-', LPAD(FLOOR(RAND() * 1e11), 11, '0'), LPAD(FLOOR(RAND() * 1e11), 11, '0'),
                      LPAD(FLOOR(RAND() * 1e11), 11, '0'), LPAD(FLOOR(RAND() * 1e11), 11, '0'),
                      LPAD(FLOOR(RAND() * 1e11), 11, '0'), LPAD(FLOOR(RAND() * 1e11), 11, '0'),
                      LPAD(FLOOR(RAND() * 1e11), 11, '0'), LPAD(FLOOR(RAND() * 1e11), 11, '0'),
                      LPAD(FLOOR(RAND() * 1e11), 11, '0'), LPAD(FLOOR(RAND() * 1e11), 11, '0')),
       CONCAT_WS('-', LPAD(FLOOR(RAND() * 1e11), 11, '0'), LPAD(FLOOR(RAND() * 1e11), 11, '0'),
                      LPAD(FLOOR(RAND() * 1e11), 11, '0'), LPAD(FLOOR(RAND() * 1e11), 11, '0'),
                      LPAD(FLOOR(RAND() * 1e11), 11, '0'))
  FROM seq_1_to_${last}_step_$step;
CREATE INDEX k_$table ON $table (k);
ANALYZE TABLE $table;
