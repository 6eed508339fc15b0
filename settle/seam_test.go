package settle

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// Nobody has in view what an earlier machine has completed, so its key is not
// asked for, also not by a retry just before it.
func TestKeysOfWhatWasCompletedAreNotAskedFor(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	m, err := New(Config{
		Committed: 1, Completed: []byte{1 << 1}, Beside: true, // 2 is completed
		Policy: Policy{Backoff: Backoff{Min: time.Second, Max: time.Hour, Jitter: -1}},
		Parking: &Parking{
			After: time.Minute, Log: []Entry{{Seq: 1, Offset: 0, Key: "parked", New: true, Attempt: 1, Due: now.Add(time.Hour)}},
			Key: func(o penstock.Offset) string {
				if o == 2 {
					t.Error("the key of a completed offset is asked for")
				}
				return ""
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, ok := m.Next(now, 4, 10)
	if !ok || s.From != 1 || s.To != 2 {
		t.Fatalf("span %+v, %t", s, ok)
	}
	if err := m.Settle(now, s, Outcome{From: 1, To: 2, Verdict: Retry, Cause: errors.New("down")}); err != nil {
		t.Fatal(err)
	}
	if s, ok = m.Next(now.Add(2*time.Second), 4, 10); !ok || s.From != 1 || s.To != 2 || s.Attempt != 2 {
		t.Fatalf("span %+v, %t, want the retry of 1", s, ok)
	}
}
