package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

const flipEvents, flipPerSegment = 300, 50

var bitFlip = attack{
	name:  "bit-flip",
	claim: "damage is reported with its place and never skipped; what lies before it, and other partitions, are served",
	fault: "one bit flipped in the middle of a closed topic, in 24 different places",
	run: func(ctx context.Context, l *lab) (string, error) {
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		topic, err := openFlip(dir)
		if err != nil {
			return "", err
		}
		for i := range flipEvents {
			if err := topic.Produce(ctx, strconv.Itoa(i)+" payload of an event"); err != nil {
				return "", err
			}
		}
		if err := topic.Close(); err != nil {
			return "", err
		}
		for step := range 24 {
			if err := flip(l, dir, step); err != nil {
				return "", fmt.Errorf("place %d: %w", step, err)
			}
		}
		return "every flip gave ErrCorrupt at the damaged frame; nothing behind it was served, nothing before it was lost", nil
	},
}

// openFlip opens a topic of two partitions and small segments. Its events go
// to the partitions in turn.
func openFlip(dir string) (*queue.Topic[string], error) {
	return queue.Open(queue.Config[string]{
		Name: "flip", Partitions: 2, Dir: dir, Codec: penstock.String(), Durability: penstock.Written, SegmentEvents: flipPerSegment,
	})
}

// flip flips one bit of an event in partition 0 of a copy of the topic and
// checks what is served.
func flip(l *lab, from string, step int) error {
	dir, err := l.dir()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyTree(from, dir); err != nil {
		return err
	}
	victim := 2*flipPerSegment + 4*step // an even number: partition 0
	if err := flipBit(dir, strconv.Itoa(victim)+" payload", step%8); err != nil {
		return err
	}
	topic, err := openFlip(dir)
	if err != nil {
		return fmt.Errorf("the topic does not open: %w", err)
	}
	defer func() { _ = topic.Close() }()
	g, err := topic.Group("audit", queue.GroupConfig{})
	if err != nil {
		return fmt.Errorf("a group does not open: %w", err)
	}
	n, err := readPartition(g, 1)
	if err != nil || n != flipEvents/2 {
		return fmt.Errorf("the sound partition served %d of %d events: %w", n, flipEvents/2, err)
	}
	n, err = readPartition(g, 0)
	var damage *penstock.CorruptError
	if !errors.Is(err, penstock.ErrCorrupt) || !errors.As(err, &damage) {
		return fmt.Errorf("after %d events: %w, want ErrCorrupt", n, err)
	}
	if n != victim/2 || damage.First != penstock.Offset(victim/2) || damage.Partition != 0 {
		return fmt.Errorf("%d events before the damage of offset %d were served: %w", n, victim/2, damage)
	}
	return nil
}

// readPartition reads a partition up to its end or an error and returns how
// many events it gave.
func readPartition(g *queue.Group[string], partition int) (n int, err error) {
	r, err := g.Reader(partition)
	if err != nil {
		return 0, err
	}
	for {
		b, ok, err := r.Read(7)
		if err != nil || !ok {
			return n, err
		}
		for i, v := range b.Values() {
			if want := strconv.Itoa(2*(n+i)+partition) + " payload of an event"; v != want {
				return n, fmt.Errorf("offset %d is %q, want %q", b.Offset(i), v, want)
			}
		}
		n += b.Len()
	}
}

// flipBit flips one bit in the only place below dir that holds text.
func flipBit(dir, text string, bit int) error {
	segments, err := files(dir, segmentPattern)
	if err != nil {
		return err
	}
	for _, path := range segments {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := bytes.Index(data, []byte(text))
		if at < 0 || filepath.Base(filepath.Dir(path)) == "p00001" {
			continue
		}
		data[at+len(text)-1] ^= 1 << bit
		return os.WriteFile(path, data, 0o600)
	}
	return fmt.Errorf("no segment holds %q", text)
}
