package segfile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// The test binary runs itself as another process with these variables set.
const (
	childMode = "PENSTOCK_SEGFILE_CHILD" // what to do: hold, write, once
	childDir  = "PENSTOCK_SEGFILE_DIR"
	childText = "PENSTOCK_SEGFILE_LEVEL"
	childPath = "PENSTOCK_SEGFILE_PATH" // "mapping": nothing is written with pwrite
)

// child runs what a re-executed test binary is to do, and does not return then.
func child() {
	mode := os.Getenv(childMode)
	if mode == "" {
		return
	}
	level, err := penstock.ParseDurability(os.Getenv(childText))
	if err == nil {
		err = childRun(mode, os.Getenv(childDir), level)
	}
	fmt.Fprintln(os.Stderr, "child:", err)
	os.Exit(1)
}

func childRun(mode, dir string, level penstock.Durability) error {
	c := small(nil, dir)
	if mode == "once" {
		return appendOnce(c)
	}
	c.Durability, c.Partitions, c.SegmentBytes = level, 2, 32*penstock.KiB
	if os.Getenv(childPath) == WriteMapping.String() {
		c.WritePath = WriteMapping
	}
	l, err := Open(c)
	if err != nil {
		return err
	}
	fmt.Println("open")
	if mode == "hold" {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt) // else the runtime calls it a deadlock
		defer l.Close()                                      // keeps the lock alive
		select {}                                            // until it is killed
	}
	// Writers append numbered records and print each when it is acknowledged.
	errs := make(chan error)
	for w := range 4 {
		go func() { // ends with the process
			p := l.Partition(w % 2)
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
				f := NewFrame(2)
				f.Add([]byte(id))
				f.Add([]byte(id + strings.Repeat("+", i%200)))
				r, err := p.Append(context.Background(), f)
				if err == nil {
					_, err = r.Wait(context.Background())
				}
				if err != nil {
					errs <- err
					return
				}
				fmt.Println(id) // one write: whole lines
			}
		}()
	}
	return <-errs
}

// onceAppends is how many appends the child makes whose system calls are looked
// at, over several segments.
const onceAppends = 40

// appendOnce appends one record after the other and prints a line when each is
// acknowledged. No barrier comes in between.
func appendOnce(c Config) error {
	l, err := open(c, seams{now: time.Now, random: rand.Uint64, idle: time.Hour})
	if err != nil {
		return err
	}
	fmt.Println("open")
	for i := range onceAppends {
		f := NewFrame(1)
		f.Add([]byte(strings.Repeat("r", 700)))
		r, err := l.Partition(0).Append(context.Background(), f)
		if err == nil {
			_, err = r.Wait(context.Background())
		}
		if err != nil {
			return err
		}
		fmt.Printf("ack %d\n", i)
	}
	err = l.Close()
	if err == nil {
		os.Exit(0)
	}
	return err
}

func startChild(t *testing.T, mode, dir string, level penstock.Durability) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd, lines := launchChild(t, mode, dir, level)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("the child said %q", lines.Text())
	}
	return cmd, lines
}

// launchChild is startChild that does not wait until the child has opened the
// log.
func launchChild(t *testing.T, mode, dir string, level penstock.Durability) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childMode+"="+mode, childDir+"="+dir, childText+"="+level.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

func TestSecondOpenIsRefusedUntilTheHolderIsKilled_QC63(t *testing.T) {
	dir := t.TempDir()
	c := small(nil, dir)
	c.Partitions, c.SegmentBytes = 2, 32*penstock.KiB
	l := openLog(t, c)
	_, err := Open(c)
	var locked *LockedError
	if !errors.As(err, &locked) || !errors.Is(err, penstock.ErrLocked) || locked.Pid != os.Getpid() || locked.Since.IsZero() || locked.Host == "" {
		t.Fatalf("second open in this process: %v, want one that names process %d", err, os.Getpid())
	}
	must(t, l.Close())
	cmd, _ := startChild(t, "hold", dir, penstock.Synced)
	_, err = Open(c)
	if !errors.As(err, &locked) || locked.Pid != cmd.Process.Pid || !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) {
		t.Fatalf("open beside another process: %v, want one that names process %d", err, cmd.Process.Pid)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	l = openLog(t, c)
	mustAppend(t, l.Partition(0), "it goes on")
}

// killsVariable is how many kills there are of each way to write. A directory
// sees killsOfDir of them at most: its making is killed, too.
const (
	killsVariable = "PENSTOCK_KILLS"
	killsOfDir    = 40
)

// TestKill9LosesNothingAcknowledged: a process that appends is killed again and
// again, at a moment that has to do with its appends or at any, also while it
// recovers from the kill before, and by different signals. What it said was
// acknowledged is there in the end, once, whole and in order.
func TestKill9LosesNothingAcknowledged(t *testing.T) {
	kills := 17 // 51 of all ways
	if text := os.Getenv(killsVariable); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		must(t, err)
	}
	for _, way := range writeWays {
		t.Run(way.String(), func(t *testing.T) {
			if way.path == WriteMapping {
				canMap(t, t.TempDir())
			}
			t.Setenv(childPath, way.path.String())
			rnd := rand.New(rand.NewPCG(9, uint64(way.level)<<8|uint64(way.path)))
			appends, opened, how := 0, 0, map[string]int{}
			for done := 0; done < kills; {
				dir, acked := t.TempDir(), map[string]bool{}
				for range min(killsOfDir, kills-done) {
					done++
					name, open := killOne(t, dir, way.level, rnd, acked)
					how[name]++
					if open {
						opened++
					}
				}
				appends += len(acked)
				verifyKilled(t, dir, way.level, acked)
			}
			t.Logf("%d kills %v, %d of them after the log was open; %d acknowledged appends, none lost", kills, how, opened, appends)
			if opened < kills/3 || appends == 0 {
				t.Errorf("%d of %d kills after the log was open and %d acknowledged appends mean too little", opened, kills, appends)
			}
		})
	}
}

// killOne starts a child, kills it and adds what it said to acked. It returns
// the name of the way it was killed, and whether the child had opened the log.
func killOne(t *testing.T, dir string, level penstock.Durability, rnd *rand.Rand, acked map[string]bool) (how string, open bool) {
	t.Helper()
	end := endings[rnd.IntN(len(endings))]
	var lines *bufio.Scanner
	var cmd *exec.Cmd
	if rnd.IntN(3) == 0 { // at any moment
		cmd, lines = launchChild(t, "write", dir, level)
		<-time.After(time.Duration(rnd.Int64N(int64(40 * time.Millisecond))))
	} else { // after so many acknowledgements, in the middle of others
		cmd, lines = startChild(t, "write", dir, level)
		open = true
		for range rnd.IntN(300) {
			if !lines.Scan() {
				t.Fatal("the child ended by itself")
			}
			acked[lines.Text()] = true
		}
	}
	must(t, end.do(cmd.Process))
	// A parent may have had it ignore the signal.
	guard := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer guard.Stop()
	for lines.Scan() {
		switch text := lines.Text(); {
		case text == "open":
			open = true
		case strings.Count(text, "-") == 2:
			acked[text] = true
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() == 1 { // 1 is an error of the child itself
		t.Fatalf("the child ended by itself, after the signal: %v", cmd.ProcessState)
	}
	return end.name, open
}

// verifyKilled checks that every acknowledged append is there once, in the
// order of its writer, whole, and that nothing else is.
func verifyKilled(t *testing.T, dir string, level penstock.Durability, acked map[string]bool) {
	t.Helper()
	c := small(nil, dir)
	c.Durability, c.Partitions, c.SegmentBytes = level, 2, 32*penstock.KiB
	l := openLog(t, c)
	last := map[string]int{}
	for i := range 2 {
		got, err := readAll(l.Partition(i), 0)
		must(t, err)
		if len(got)%2 != 0 {
			t.Fatalf("partition %d has %d records, and every append has two", i, len(got))
		}
		for j := 0; j < len(got); j += 2 {
			id := got[j]
			cut := strings.LastIndexByte(id, '-')
			n, err := strconv.Atoi(id[cut+1:])
			must(t, err)
			if got[j+1] != id+strings.Repeat("+", n%200) {
				t.Fatalf("append %s is not whole", id)
			}
			if next, seen := last[id[:cut]]; n != next && (seen || n != 0) {
				t.Fatalf("append %s follows number %d of its writer", id, next-1)
			}
			last[id[:cut]] = n + 1
			delete(acked, id)
		}
	}
	if len(acked) > 0 {
		t.Fatalf("%d acknowledged appends are lost: %v", len(acked), acked)
	}
}

func TestWritersInParallelKeepTheirOrder(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.SegmentBytes = 32 * penstock.KiB
		l := openLog(t, c)
		p := l.Partition(0)
		const writers, each = 16, 40
		errs := make(chan error, writers)
		for w := range writers {
			go func() { // ends with its appends; waited for below
				errs <- func() error {
					for i := range each {
						if _, err := tryAppend(p, fmt.Sprintf("%d %d", w, i)); err != nil {
							return err
						}
					}
					return nil
				}()
			}()
		}
		r, err := p.NewReader(0)
		must(t, err)
		defer r.Close()
		next, seen := map[string]int{}, 0
		deadline := time.After(time.Minute)
		woken := make(chan struct{}, 1)
		p.OnReadable(func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		for seen < writers*each {
			rec, err := r.Next(7)
			must(t, err)
			if rec.N == 0 {
				if seen < int(p.Readable()) {
					continue
				}
				select {
				case <-woken:
				case err := <-errs:
					must(t, err)
				case <-deadline:
					t.Fatalf("%d records after a minute", seen)
				}
				continue
			}
			for i := range rec.N {
				w, n, _ := strings.Cut(string(rec.At(i)), " ")
				if strconv.Itoa(next[w]) != n {
					t.Fatalf("writer %s: record %s, want %d", w, n, next[w])
				}
				next[w]++
			}
			seen += rec.N
		}
	})
}
