package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestUnreadStandardErrorHoldsNothingUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		n := newNotes(w)
		line := strings.Repeat("x", 1023) + "\n"
		for range 1000 { // four times what may wait
			if k, err := n.Write([]byte(line)); k != len(line) || err != nil {
				t.Fatalf("Write = %d, %v", k, err)
			}
		}
		start := time.Now()
		n.finish(notesOver)
		if took := time.Since(start); took != notesOver {
			t.Errorf("the end took %v", took)
		}
		// Somebody begins to read: what was kept comes, then how much did not.
		got := make(chan string)
		go func() { // ends with the pipe; received from below
			b, _ := io.ReadAll(r)
			got <- string(b)
		}()
		n.finish(time.Hour)
		_, _ = n.Write([]byte("later\n"))
		n.finish(time.Hour)
		_ = w.Close()
		text := <-got
		kept := strings.Count(text, line)
		if want := maxNotes / len(line); kept != want {
			t.Errorf("%d lines were kept, want %d", kept, want)
		}
		dropped := 0 // told in one line or in several, as the writer came to run
		for _, tail := range strings.Split(text, "(")[1:] {
			n := 0
			if _, err := fmt.Sscan(tail, &n); err != nil {
				t.Errorf("%q does not begin with a number", tail)
			}
			dropped += n
		}
		if kept+dropped != 1000 {
			t.Errorf("%d kept and %d dropped of 1000; the text ends with %q", kept, dropped, text[len(text)-80:])
		}
		if !strings.HasSuffix(text, "nobody read them)\nlater\n") {
			t.Errorf("the text ends with %q", text[len(text)-80:])
		}
	})
}

func TestNotesComeInOrder(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	n := newNotes(&b)
	for _, s := range []string{"one\n", "two\n", "three\n"} {
		_, _ = n.Write([]byte(s))
	}
	n.finish(time.Minute)
	if b.String() != "one\ntwo\nthree\n" {
		t.Errorf("notes are %q", b.String())
	}
	if isTerminal(n) {
		t.Error("a buffer is taken for a terminal")
	}
}
