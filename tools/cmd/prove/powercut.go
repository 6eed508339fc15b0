package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

var powerCut = attack{
	name:  "power-cut",
	claim: "no event acknowledged at synced is lost by a loss of power, and a group stands inside the log",
	fault: "an ext4 on a loop device that stops at a random moment, with everything that it has not written, under four producers and a consumer; every second time a process was killed just before, and another one had gone on",
	run: func(ctx context.Context, l *lab) (string, error) {
		c, err := l.startMounted(ctx, "power-cut", strconv.Itoa(cutRounds), penstock.Synced.String())
		if err != nil {
			return "", err
		}
		out, err := c.wait()
		if text := c.errors(); strings.Contains(text, cannotCut) {
			return "", skip(text)
		}
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, c.errors())
		}
		return lastLine(out), nil
	},
}

const (
	// cannotCut begins the message of a child that cannot lose its power.
	cannotCut = "cannot stop a file system"
	cutRounds = 8
	cutDisk   = 64 << 20
)

func init() {
	roles["power-cut"] = cutRole
	roles["work-until-cut"] = workRole
}

// cutRole has the file system to itself; its arguments are how often the power
// goes, and the level.
func cutRole(args []string) error {
	rounds, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	level, err := penstock.ParseDurability(args[1])
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "cut")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	d := &disk{image: filepath.Join(temp, "image"), dir: filepath.Join(temp, "disk"), level: level, acked: map[string]bool{}}
	if err := d.format(cutDisk); err != nil {
		return fmt.Errorf("%s: %w", cannotCut, err)
	}
	for round := range rounds {
		if err := d.lose(round); err != nil {
			return fmt.Errorf("loss of power %d: %w", round+1, err)
		}
	}
	fmt.Printf("%v: %d acknowledged, power lost %d times, 0 lost\n", level, len(d.acked), rounds)
	return nil
}

// disk is a file system in a file, and what was acknowledged on it.
type disk struct {
	image, dir string
	level      penstock.Durability
	acked      map[string]bool
}

// lose works on the disk, takes its power away, and looks at what is left.
func (d *disk) lose(round int) error {
	if err := d.mount(); err != nil {
		return err
	}
	if round%2 == 1 {
		if err := d.work(fmt.Sprintf("e%d-a", round), (*child).kill); err != nil {
			return errors.Join(err, d.unmount())
		}
	}
	var stopErr error
	err := d.work(fmt.Sprintf("e%d-b", round), func(c *child) []string {
		if rand.IntN(2) == 0 {
			return d.stopStill(c, &stopErr)
		}
		stopErr = d.stop()
		c.kill() // what it says from here on does not count: see stop
		return nil
	})
	if err := errors.Join(err, stopErr, d.unmount()); err != nil {
		return err
	}
	if err := d.mount(); err != nil { // the journal is replayed here
		return err
	}
	return errors.Join(d.check(), d.unmount())
}

// work lets a child produce and consume for a moment, ends it, and notes what
// was acknowledged to it.
func (d *disk) work(prefix string, end func(*child) []string) error {
	c, err := (&lab{}).startRole(context.Background(), nil, "work-until-cut", d.topic(), d.level.String(), prefix)
	if err != nil {
		return err
	}
	if _, err := c.next(context.Background()); err != nil { // ready
		return err
	}
	timer := time.NewTimer(time.Duration(20+rand.IntN(300)) * time.Millisecond)
	defer timer.Stop()
	for alive := true; alive; {
		select {
		case id, ok := <-c.lines:
			if !ok {
				return fmt.Errorf("the child ended by itself: %s", c.errors())
			}
			d.acked[id] = true
		case <-timer.C:
			alive = false
		}
	}
	for _, id := range end(c) {
		d.acked[id] = true
	}
	return nil
}

func (d *disk) topic() string { return filepath.Join(d.dir, "data") }

// check opens what is left: every acknowledged event is there once, nothing is
// that was not sent, and the group that consumed goes on inside the log.
func (d *disk) check() (err error) {
	topic, err := openCut(d.topic(), d.level)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, topic.Close()) }()
	seen, err := readAll(topic)
	if err != nil {
		return err
	}
	for value, n := range seen {
		id, _, _ := strings.Cut(value, " ")
		if n != 1 || !strings.HasPrefix(id, "e") {
			return fmt.Errorf("event %q is there %d times", id, n)
		}
		seen[id] = n
	}
	for id := range d.acked {
		if seen[id] != 1 {
			return fmt.Errorf("event %s was acknowledged and is there %d times", id, seen[id])
		}
	}
	g, err := topic.Group("work", queue.GroupConfig{})
	if err != nil {
		return fmt.Errorf("the group that consumed: %w", err)
	}
	if _, _, err := g.Consumer(0).TryPull(1); err != nil {
		return fmt.Errorf("the group that consumed: %w", err)
	}
	return nil
}

func openCut(dir string, level penstock.Durability) (*queue.Topic[string], error) {
	return queue.Open(queue.Config[string]{
		Name: "cut", Partitions: 2, Dir: dir, Codec: penstock.String(), Durability: level, SegmentBytes: 256 * penstock.KiB,
	})
}

// workRole produces and consumes until it is killed or the disk is gone, and
// prints the id of each event once it is acknowledged. Its arguments are the
// folder, the level and a prefix for the ids. A second group holds everything.
func workRole(args []string) error {
	level, err := penstock.ParseDurability(args[1])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(args[0], 0o700); err != nil {
		return err
	}
	topic, err := openCut(args[0], level)
	if err != nil {
		return err
	}
	if _, err := topic.Group("hold", queue.GroupConfig{}); err != nil {
		return err
	}
	g, err := topic.Group("work", queue.GroupConfig{})
	if err != nil {
		return err
	}
	// Ends this process when the one that started it is gone.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	fmt.Println("ready")
	var wg sync.WaitGroup
	// Consumes; ends with the process or at its first error.
	wg.Go(func() {
		for {
			b, err := g.Consumer(0).Pull(context.Background())
			if err != nil || b.Commit() != nil {
				return
			}
		}
	})
	padding := " " + strings.Repeat(".", 500)
	for p := range 4 {
		// One producer; ends with the process or at its first error.
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s-%d-%d", args[2], p, i)
				if topic.Produce(context.Background(), id+padding) != nil {
					return
				}
				if _, err := os.Stdout.WriteString(id + "\n"); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	select {} // the disk is gone; who took it away kills this process
}
