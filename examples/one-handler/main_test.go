package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/queue"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestTheHandlerRunsUneditedOnEveryCarrier is the proof of ADR 0002.
func TestTheHandlerRunsUneditedOnEveryCarrier(t *testing.T) {
	want := int64(orders*100 + orders*(orders-1)/2)
	for name, carry := range map[string]func(context.Context, *ledger) error{
		"memory": func(ctx context.Context, l *ledger) error {
			return onTopic(ctx, l, queue.Config[order]{Name: "orders", Partitions: 4})
		},
		"file": func(ctx context.Context, l *ledger) error {
			return onTopic(ctx, l, queue.Config[order]{Name: "orders", Partitions: 4, Dir: t.TempDir(), Codec: penstock.JSON[order]()})
		},
		"stream": onStream,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(orders)
			if err := carry(t.Context(), l); err != nil {
				t.Fatal(err)
			}
			if n, cents := l.booked(); n != orders || cents != want {
				t.Errorf("%d orders, %d cents, want %d and %d", n, cents, orders, want)
			}
		})
	}
}

func TestTheProgramRuns(t *testing.T) {
	if err := run(t.Context(), filepath.Join(t.TempDir(), "data")); err != nil {
		t.Fatal(err)
	}
}

// TestTheHandlerKnowsNoCarrier keeps handler.go free of what carries events.
func TestTheHandlerKnowsNoCarrier(t *testing.T) {
	source, err := os.ReadFile("handler.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"penstock/queue", "penstock/stream", "penstock/stage"} {
		if strings.Contains(string(source), word) {
			t.Errorf("handler.go imports %s", word)
		}
	}
}
