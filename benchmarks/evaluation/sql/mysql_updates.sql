CREATE TABLE u$table (id INT PRIMARY KEY, v INT NOT NULL, filler VARCHAR(100) NOT NULL) ENGINE = InnoDB;
INSERT INTO u$table SELECT seq, 0, repeat('x', 80) FROM seq_1_to_$rows;
