package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func post(t *testing.T, s *service, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/events", strings.NewReader(body)))
	return w
}

// TestAcceptedEventsReachTheFileOfTheirHour accepts events, ends without
// writing any of them, starts again, and finds each in a file.
func TestAcceptedEventsReachTheFileOfTheirHour(t *testing.T) {
	dir := t.TempDir()
	s, err := openService(dir)
	if err != nil {
		t.Fatal(err)
	}
	const events = 50
	var wg sync.WaitGroup
	for i := range events {
		wg.Go(func() {
			w := post(t, s, fmt.Sprintf(`{"order":%d}`, i))
			var answer struct {
				Partition, Offset int
				Level             string
			}
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusAccepted || answer.Level != "synced" {
				t.Errorf("%d %s %v", w.Code, w.Body, err)
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = openService(dir); err != nil {
		t.Fatal(err)
	}
	seen := writeUntil(t, s, events)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if seen[fmt.Sprintf(`{"order":%d}`, i)] != 1 {
			t.Errorf("order %d is written %d times", i, seen[fmt.Sprintf(`{"order":%d}`, i)])
		}
	}
}

// writeUntil runs the writer until n events are in the files, and counts them.
func writeUntil(t *testing.T, s *service, n int) map[string]int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := n
	err := s.files.Run(ctx, func(ctx context.Context, b penstock.Batch[json.RawMessage]) error {
		if err := s.handle(ctx, b); err != nil {
			return err
		}
		if left -= b.Len(); left == 0 {
			cancel()
		}
		return nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	seen := map[string]int{}
	files, err := filepath.Glob(filepath.Join(s.dir, "20??-??-??T??.ndjson"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no hourly files: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(data) {
			var entry struct{ Event json.RawMessage }
			if err := json.Unmarshal(line, &entry); err != nil {
				t.Fatal(err)
			}
			seen[string(entry.Event)]++
		}
	}
	return seen
}

func TestBadRequestsAreRefused(t *testing.T) {
	s, err := openService(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]int{
		`{"order":`:                             http.StatusBadRequest,
		``:                                      http.StatusBadRequest,
		`"` + strings.Repeat("a", 64<<10) + `"`: http.StatusRequestEntityTooLarge,
	} {
		if w := post(t, s, body); w.Code != want {
			t.Errorf("%.20q: %d, want %d", body, w.Code, want)
		}
	}
	if n := s.topic.Stats().Produced; n != 0 {
		t.Errorf("%d events were stored", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if w := post(t, s, `1`); w.Code != http.StatusServiceUnavailable {
		t.Errorf("after close: %d", w.Code)
	}
}

// TestRunEndsWithItsContext starts the whole program and stops it.
func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, "127.0.0.1:0", t.TempDir()); err != nil {
		t.Error(err)
	}
}
