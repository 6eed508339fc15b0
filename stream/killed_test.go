package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// Environment of the child process of TestKilledProcessLosesNothing_OR153.
const (
	killedDir  = "PENSTOCK_TEST_STREAM_DIR"
	killedLife = "PENSTOCK_TEST_STREAM_LIFE"
)

// killedCapacity, in containers of two events, bounds what may come again.
const killedCapacity = 500

var killedStreams, killedSubs = []string{"a", "b", "c"}, []string{"fast", "slow"}

// life opens the topic in dir and runs a provider over it, whose handlers tell
// what they settle as "<subscription> <value>" before they return.
func life(dir string, tell func(line string)) (p *Provider, shut func() error, err error) {
	topic, err := OpenTopic(queue.Config[Container]{
		Name: "topic", Partitions: 2, Dir: dir, Durability: penstock.Written, Capacity: killedCapacity, SegmentBytes: 1 << 20, Logger: quiet,
	})
	if err != nil {
		return nil, nil, err
	}
	if p, err = Open(Config{Name: "shop", Factory: topic, Queues: 2, Logger: quiet, DeliveryBackoff: Fixed(time.Millisecond)}); err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	calls := 0
	for _, key := range killedStreams {
		for _, sub := range killedSubs {
			_, err = Of[string](p, "orders", key).Subscribe(context.Background(), sub, func(_ context.Context, b penstock.Batch[string]) error {
				mu.Lock()
				calls++
				n := calls
				mu.Unlock()
				if n%13 == 0 {
					return errBoom
				}
				if n%7 == 0 {
					b.Fail(b.Len()-1, errBoom)
				}
				if sub == "slow" {
					<-time.After(time.Millisecond)
				}
				for i, v := range b.Values() {
					if n%7 != 0 || i < b.Len()-1 {
						tell(sub + " " + v)
					}
				}
				return nil
			})
			if err != nil {
				return nil, nil, err
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // ended by shut, which waits for it
	return p, func() error { cancel(); return errors.Join(<-ended, p.Close(), topic.Close()) }, nil
}

// liveUntilKilled is the child process: it publishes without end and tells
// what was accepted as "ack <value>". A value is "<stream> <life> <number>".
func liveUntilKilled(dir, name string) {
	p, _, err := life(dir, func(line string) { fmt.Println(line) })
	if err != nil {
		fmt.Println("error", err)
		return
	}
	var producers sync.WaitGroup
	for _, key := range killedStreams {
		producers.Go(func() { // ends when publishing fails; waited for below
			for n := 0; ; n += 2 {
				values := []string{fmt.Sprintf("%s %s %06d", key, name, n), fmt.Sprintf("%s %s %06d", key, name, n+1)}
				if err := Of[string](p, "orders", key).Publish(context.Background(), values...); err != nil {
					fmt.Println("error", err)
					return
				}
				fmt.Printf("ack %s\nack %s\n", values[0], values[1])
			}
		})
	}
	producers.Wait()
}

// witness holds what was accepted, and what each subscription has settled, in
// the order in which it was told.
type witness struct {
	mu      sync.Mutex
	acked   map[string]bool
	settled map[string]map[string]bool // by subscription
	last    map[string]string          // by subscription and stream: newest value settled
	errs    []string
}

func (w *witness) tell(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	who, value, _ := strings.Cut(line, " ")
	switch {
	case who == "ack":
		w.acked[value] = true
	case w.settled[who] == nil:
		w.errs = append(w.errs, line)
	case !w.settled[who][value]:
		w.settled[who][value] = true
		key := who + " " + value[:1]
		if value < w.last[key] {
			w.errs = append(w.errs, fmt.Sprintf("%s settled %q for the first time after %q", who, value, w.last[key]))
		}
		w.last[key] = value
	}
}

func (w *witness) missing() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, sub := range killedSubs {
		for _, v := range slices.Sorted(maps.Keys(w.acked)) {
			if !w.settled[sub][v] {
				out = append(out, sub+" "+v)
			}
		}
	}
	return out
}

// A process that publishes and delivers over a topic on disk is killed at
// random moments: after the restart every accepted event has been settled by
// every subscription, in order, with failures on the way.
func TestKilledProcessLosesNothing_OR153(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	w := &witness{acked: map[string]bool{}, settled: map[string]map[string]bool{}, last: map[string]string{}}
	for _, sub := range killedSubs {
		w.settled[sub] = map[string]bool{}
	}
	repeated, told := 0, 0
	for n := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), killedDir+"="+dir, killedLife+"="+fmt.Sprint(n))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for left := 100 + random.IntN(3000); lines.Scan(); left-- {
			w.tell(lines.Text())
			if told++; left == 0 {
				cmd.Process.Kill() // the rest of what it told is read to the end
			}
		}
		cmd.Wait()
		cancel()
	}
	before := len(w.missing())
	p, shut, err := life(dir, func(line string) {
		w.mu.Lock()
		who, v, _ := strings.Cut(line, " ")
		if w.settled[who][v] {
			repeated++
		}
		w.mu.Unlock()
		w.tell(line)
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); len(w.missing()) > 0 && time.Now().Before(deadline); {
		<-time.After(5 * time.Millisecond)
	}
	if err := shut(); err != nil {
		t.Error(err)
	}
	if m := w.missing(); len(m) > 0 {
		t.Errorf("seed %d: %d events lost, first %v; %+v", seed, len(m), m[:min(len(m), 5)], p.Stats())
	}
	if len(w.errs) > 0 {
		t.Errorf("seed %d: %v", seed, w.errs[:min(len(w.errs), 5)])
	}
	if len(w.acked) == 0 || before == 0 {
		t.Errorf("seed %d: the test did not test: %d accepted, %d to settle after the kills", seed, len(w.acked), before)
	}
	if most := killedCapacity * 2 * len(killedSubs); repeated > most {
		t.Errorf("seed %d: %d events repeated, at most %d can have been above the checkpoint", seed, repeated, most)
	}
	t.Logf("%d accepted, %d owed after the last kill, %d repeated in the last life, %d lines", len(w.acked), before, repeated, told)
}
