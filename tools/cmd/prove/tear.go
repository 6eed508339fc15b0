package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// segmentPattern matches the files that hold the events of a partition.
const segmentPattern = "*.seg"

const tearEvents = 60

var tornTail = attack{
	name:  "torn-tail",
	claim: "a torn last append is cut off, and everything before it is kept",
	fault: "kill -9 without a clean end, then the last bytes of the log missing, at 40 different places",
	run: func(ctx context.Context, l *lab) (string, error) {
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		c, err := l.startRole(ctx, nil, "tear", dir)
		if err != nil {
			return "", err
		}
		if _, err := c.next(ctx); err != nil {
			return "", err
		}
		c.kill()
		for cut := 1; cut <= 40; cut++ {
			if err := tear(l, dir, cut); err != nil {
				return "", fmt.Errorf("%d bytes missing: %w", cut, err)
			}
		}
		return fmt.Sprintf("%d events, each in an append of its own; the torn one is gone, %d are kept, and appends go on", tearEvents, tearEvents-1), nil
	},
}

func init() { roles["tear"] = tearRole }

func openTear(dir string) (*queue.Topic[string], error) {
	return queue.Open(queue.Config[string]{Name: "tear", Dir: dir, Codec: penstock.String()})
}

// tearRole appends events one by one and waits to be killed.
func tearRole(args []string) error {
	topic, err := openTear(args[0])
	if err != nil {
		return err
	}
	for i := range tearEvents {
		if err := topic.Produce(context.Background(), "event "+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	select {}
}

// tear makes a copy of the topic whose last append misses its last bytes, and
// checks what is left of it, twice, with an append in between.
func tear(l *lab, from string, cut int) error {
	dir, err := l.dir()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyTree(from, dir); err != nil {
		return err
	}
	segments, err := files(dir, segmentPattern)
	if err != nil || len(segments) == 0 {
		return fmt.Errorf("no file %s: %w", segmentPattern, err)
	}
	if err := clearTail(segments, cut); err != nil {
		return err
	}
	want := map[string]int{}
	for i := range tearEvents - 1 {
		want["event "+strconv.Itoa(i)] = 1
	}
	for _, more := range []string{"after", "again"} {
		topic, err := openTear(dir)
		if err != nil {
			return err
		}
		got, err := readAll(topic)
		if err == nil {
			err = sameCounts(got, want)
		}
		if err == nil {
			err = topic.Produce(context.Background(), more)
		}
		want[more] = 1
		if err := errors.Join(err, topic.Close()); err != nil {
			return err
		}
	}
	return nil
}

// clearTail clears the last n bytes that hold anything in the newest segment
// that holds anything besides its header.
func clearTail(segments []string, n int) error {
	for _, path := range slices.Backward(segments) {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Contains(data, []byte("event "+strconv.Itoa(tearEvents-1))) {
			continue
		}
		end := len(bytes.TrimRight(data, "\x00"))
		clear(data[end-n : end])
		return os.WriteFile(path, data, 0o600)
	}
	return errors.New("no segment holds the last event")
}

// sameCounts compares what was read with what must be there.
func sameCounts(got, want map[string]int) error {
	for v, n := range want {
		if got[v] != n {
			return fmt.Errorf("%q is there %d times, want %d", v, got[v], n)
		}
	}
	for v, n := range got {
		if want[v] != n {
			return fmt.Errorf("%q is there %d times, want %d", v, n, want[v])
		}
	}
	return nil
}
