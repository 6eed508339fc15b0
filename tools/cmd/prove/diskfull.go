package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

var diskFull = attack{
	name:  "disk-full",
	claim: "a full disk gives ErrDiskFull; what was acknowledged stays readable, commits work, and appends go on when there is room",
	fault: "a file system of 24 MiB filled to its last byte, at written and at synced",
	run: func(ctx context.Context, l *lab) (string, error) {
		var details []string
		for _, level := range []penstock.Durability{penstock.Written, penstock.Synced} {
			c, err := l.startMounted(ctx, "disk-full", level.String())
			if err != nil {
				return "", err
			}
			out, err := c.wait()
			if text := c.errors(); strings.Contains(text, cannotMount) {
				return "", skip(text)
			}
			if err != nil {
				return "", fmt.Errorf("%v: %w: %s", level, err, c.errors())
			}
			details = append(details, lastLine(out))
		}
		return strings.Join(details, "; "), nil
	},
}

// cannotMount begins the message of a child that may not mount.
const cannotMount = "cannot mount a small file system"

func init() { roles["disk-full"] = diskFullRole }

// diskFullRole mounts a small file system, which ends with this process, and
// fills it.
func diskFullRole(args []string) error {
	level, err := penstock.ParseDurability(args[0])
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "full")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(dir) }()
	unmount, err := mountSmall(dir, 24<<20)
	if err != nil {
		return fmt.Errorf("%s: %w", cannotMount, err)
	}
	return errors.Join(fill(dir, level), unmount())
}

func openFull(dir string, level penstock.Durability) (*queue.Topic[[]byte], error) {
	return queue.Open(queue.Config[[]byte]{
		Name: "full", Dir: dir, Codec: penstock.Raw(), Durability: level, SegmentBytes: 2 * penstock.MiB,
	})
}

// fill produces until the disk is full, looks at what is left of the promise,
// makes room, and produces again.
func fill(dir string, level penstock.Durability) error {
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
		return err
	}
	topic, err := openFull(dir, level)
	if err != nil {
		return err
	}
	g, err := topic.Group("work", queue.GroupConfig{})
	if err != nil {
		return err
	}
	acked, err := produceUntil(topic, 0, 1<<20)
	if !errors.Is(err, penstock.ErrDiskFull) {
		return fmt.Errorf("after %d events: %w, want ErrDiskFull", acked, err)
	}
	if acked == 0 {
		return errors.New("the disk was full at once")
	}
	half := acked / 2
	if err := readFull(g, 0, acked, half); err != nil {
		return fmt.Errorf("while the disk is full: %w", err)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	more, err := produceUntil(topic, acked, 100)
	if err != nil {
		return fmt.Errorf("after room was made: event %d: %w", acked+more, err)
	}
	if err := topic.Close(); err != nil {
		return err
	}
	if topic, err = openFull(dir, level); err != nil {
		return err
	}
	if g, err = topic.Group("work", queue.GroupConfig{}); err != nil {
		return err
	}
	if err := readFull(g, half, acked+more, 0); err != nil {
		return fmt.Errorf("after a restart: %w", err)
	}
	fmt.Printf("%v: %d events before ErrDiskFull, %d after room was made, all there; %d committed while it was full\n", level, acked, more, half)
	return topic.Close()
}

// produceUntil produces up to max events, numbered from first, and returns how
// many were acknowledged before the first error.
func produceUntil(topic *queue.Topic[[]byte], first, most int) (n int, err error) {
	for ; n < most; n++ {
		v := append([]byte(strconv.Itoa(first+n)), bytes.Repeat([]byte{'.'}, 4000)...)
		if err := topic.Produce(context.Background(), v); err != nil {
			return n, err
		}
	}
	return n, nil
}

// readFull reads the events [from, to), which must be the next ones of the
// group, and commits those below commit on the way.
func readFull(g *queue.Group[[]byte], from, to, commit int) error {
	r, err := g.Reader(0)
	if err != nil {
		return err
	}
	for i := from; i < to; {
		b, ok, err := r.Read(100)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("the events end at %d of %d", i, to)
		}
		for _, v := range b.Values() {
			if !bytes.HasPrefix(v, []byte(strconv.Itoa(i)+".")) {
				return fmt.Errorf("event %d is %.20q", i, v)
			}
			i++
		}
		if commit > 0 {
			if err := r.Commit(min(r.Next(), penstock.Offset(commit))); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
		}
	}
	return nil
}
