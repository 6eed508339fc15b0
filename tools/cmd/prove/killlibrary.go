package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

var killLibrary = attack{
	name:  "kill-library",
	claim: "no acknowledged event is lost at written or synced, and none appears that was not sent",
	fault: "kill -9 of a process with four producers, eight times at random moments per level",
	run: func(ctx context.Context, l *lab) (string, error) {
		var details []string
		for _, level := range []penstock.Durability{penstock.Written, penstock.Synced} {
			detail, err := killRounds(ctx, l, level, 8)
			if err != nil {
				return "", fmt.Errorf("%v: %w", level, err)
			}
			details = append(details, detail)
		}
		return strings.Join(details, "; "), nil
	},
}

func init() { roles["produce"] = produceRole }

const killPartitions = 3

func openKill(dir string, level penstock.Durability) (*queue.Topic[string], error) {
	return queue.Open(queue.Config[string]{
		Name: "kill", Partitions: killPartitions, Dir: dir, Codec: penstock.String(), Durability: level,
	})
}

// produceRole produces until it is killed and prints the id of each event once
// it is acknowledged. Its arguments are the folder, the level and a prefix for
// the ids.
func produceRole(args []string) error {
	level, err := penstock.ParseDurability(args[1])
	if err != nil {
		return err
	}
	topic, err := openKill(args[0], level)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	for p := range 4 {
		// One producer; ends with the process or at its first error.
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s-%d-%d", args[2], p, i)
				if err := topic.Produce(context.Background(), id); err != nil {
					failed <- err
					return
				}
				if _, err := os.Stdout.WriteString(id + "\n"); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	return <-failed
}

// killRounds kills a producing child again and again over one directory and
// checks after each death that every acknowledged event is there once.
func killRounds(ctx context.Context, l *lab, level penstock.Durability, rounds int) (string, error) {
	dir, err := l.dir()
	if err != nil {
		return "", err
	}
	acked := map[string]bool{}
	for round := range rounds {
		c, err := l.startRole(ctx, nil, "produce", dir, level.String(), "r"+strconv.Itoa(round))
		if err != nil {
			return "", err
		}
		if _, err := c.next(ctx); err != nil { // ready
			return "", err
		}
		moment := time.Duration(20+rand.IntN(300)) * time.Millisecond
		timer := time.NewTimer(moment)
		alive := true
		for alive {
			select {
			case id, ok := <-c.lines:
				if !ok {
					return "", fmt.Errorf("the child ended by itself: %s", c.errors())
				}
				acked[id] = true
			case <-timer.C:
				alive = false
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		for _, id := range c.kill() {
			acked[id] = true
		}
		if err := allThere(dir, level, acked); err != nil {
			return "", fmt.Errorf("after kill %d: %w", round+1, err)
		}
	}
	return fmt.Sprintf("%v: %d acknowledged, %d kills, 0 lost", level, len(acked), rounds), nil
}

// allThere reads the topic from its beginning and compares it with what was
// acknowledged. An event that was sent and not acknowledged may be there.
func allThere(dir string, level penstock.Durability, acked map[string]bool) error {
	topic, err := openKill(dir, level)
	if err != nil {
		return err
	}
	defer func() { _ = topic.Close() }()
	seen, err := readAll(topic)
	if err != nil {
		return err
	}
	for id := range acked {
		if seen[id] != 1 {
			return fmt.Errorf("event %s was acknowledged and is there %d times", id, seen[id])
		}
	}
	for id, n := range seen {
		if n != 1 || !strings.HasPrefix(id, "r") {
			return fmt.Errorf("event %q is there %d times", id, n)
		}
	}
	return nil
}

// readAll pulls everything that a new group sees, without a commit, and counts
// each value.
func readAll(topic *queue.Topic[string]) (map[string]int, error) {
	seen := map[string]int{}
	name := "audit-" + strconv.FormatUint(rand.Uint64(), 36)
	group, err := topic.Group(name, queue.GroupConfig{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = group.Close() }()
	for p := range topic.Partitions() {
		r, err := group.Reader(p)
		if err != nil {
			return nil, err
		}
		for {
			b, ok, err := r.Read(1000)
			if err != nil {
				return seen, fmt.Errorf("partition %d: %w", p, err)
			}
			if !ok {
				break
			}
			for _, v := range b.Values() {
				seen[strings.Clone(v)]++
			}
		}
	}
	return seen, nil
}
