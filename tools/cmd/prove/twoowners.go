package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/penstock/penstock"
)

var twoOwners = attack{
	name:  "two-owners",
	claim: "a directory has one owner",
	fault: "a second process, and a second opener in one process, on a directory in use",
	run: func(ctx context.Context, l *lab) (string, error) {
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		c, err := l.startRole(ctx, nil, "hold", dir)
		if err != nil {
			return "", err
		}
		defer c.kill()
		if _, err := c.next(ctx); err != nil {
			return "", err
		}
		if _, err := openKill(dir, penstock.Synced); !errors.Is(err, penstock.ErrLocked) {
			return "", fmt.Errorf("a second process got %v, want ErrLocked", err)
		}
		c.kill()
		first, err := openKill(dir, penstock.Synced)
		if err != nil {
			return "", fmt.Errorf("after the death of the owner: %w", err)
		}
		defer func() { _ = first.Close() }()
		if _, err := openKill(dir, penstock.Synced); !errors.Is(err, penstock.ErrLocked) {
			return "", fmt.Errorf("a second opener got %v, want ErrLocked", err)
		}
		return "refused with ErrLocked while the owner lived, free after its kill -9", nil
	},
}

func init() { roles["hold"] = holdRole }

// holdRole opens a topic and keeps it until its input ends.
func holdRole(args []string) error {
	topic, err := openKill(args[0], penstock.Synced)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, topic.Close())
}
