// How a program with pgx repeats transactions: see docs/retry.md.
//
// PGHERD_DSN holds the line that `pgherd local status --show-passwords` prints for applications.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	attempts = 20
	patience = 10 * time.Second
)

// code returns the SQLSTATE of an error, and "" where the server has not said one.
func code(err error) string {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		return said.Code
	}
	return ""
}

// nothingCommitted tells whether an error says so, whenever it arrives.
func nothingCommitted(err error) bool {
	switch code(err) {
	case "40001", "40P01", "25006":
		return true
	}
	return errors.Is(err, pgx.ErrTxCommitRollback)
}

// lost tells whether the server or the connection failed, and not the program.
func lost(err error) bool {
	state := code(err)
	for _, class := range []string{"08", "53", "57P", "58"} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return state == ""
}

// once executes the work in a transaction. The token is empty as long as COMMIT can't have been sent.
func once(ctx context.Context, dsn string, work func(pgx.Tx) error) (token string, err error) {
	connection, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer connection.Close(ctx)
	tx, err := connection.Begin(ctx)
	if err != nil {
		return "", err
	}
	if err = work(tx); err != nil {
		return "", err
	}
	if err = tx.QueryRow(ctx, "SELECT pgherd.current_token()").Scan(&token); err != nil {
		return "", err
	}
	return token, tx.Commit(ctx)
}

// run executes the work in a transaction that is committed once.
//
// The work may be called several times, so it must do nothing but what a rollback undoes. It returns
// the errors of pgx as they are; one of its own that has no SQLSTATE would count as a lost connection.
func run(ctx context.Context, dsn string, work func(pgx.Tx) error) error {
	var last error
	for attempt := 0; attempt < attempts; attempt++ {
		token, err := once(ctx, dsn, work)
		if err == nil {
			return nil
		}
		last = err
		if !nothingCommitted(err) {
			if !lost(err) {
				return err // a mistake of the program, which would come again
			}
			if token != "" {
				committed, unknown := outcome(ctx, dsn, token)
				if unknown != nil || committed {
					return unknown
				}
			}
		}
		pause(attempt)
	}
	return fmt.Errorf("%d attempts have failed, the last: %w", attempts, last)
}

// outcome tells whether the transaction of this token is committed; any member may be asked.
func outcome(ctx context.Context, dsn string, token string) (bool, error) {
	end := time.Now().Add(patience)
	for attempt := 0; time.Now().Before(end); attempt++ {
		status, err := ask(ctx, dsn, token)
		if err == nil && status != "unknown" { // still under way
			return strings.HasPrefix(status, "committed"), nil
		}
		if err != nil && !lost(err) && code(err) != "25006" {
			return false, err
		}
		pause(attempt)
	}
	return false, fmt.Errorf(
		"nobody knows what became of transaction %s: look before you repeat", token)
}

func ask(ctx context.Context, dsn string, token string) (status string, err error) {
	connection, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer connection.Close(ctx)
	err = connection.QueryRow(ctx, "SELECT pgherd.transaction_status($1)", token).Scan(&status)
	return status, err
}

// pause waits a little, by chance, and longer each time.
func pause(attempt int) {
	longest := min(time.Second, 10*time.Millisecond<<min(attempt, 10))
	time.Sleep(time.Duration(rand.Int63n(int64(longest))))
}

func transfer(tx pgx.Tx) error {
	ctx := context.Background()
	if _, err := tx.Exec(ctx, "UPDATE account SET balance = balance - 1 WHERE id = 1"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + 1 WHERE id = 2")
	return err
}

func main() {
	transfers, err := strconv.Atoi(os.Getenv("PGHERD_TRANSFERS"))
	if err != nil {
		transfers = 1
	}
	for i := 0; i < transfers; i++ {
		if err := run(context.Background(), os.Getenv("PGHERD_DSN"), transfer); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
