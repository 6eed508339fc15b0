package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestEveryLineOfGoTestReachesEveryGroup tests two packages of this repository
// and sends their events through the real binary.
func TestEveryLineOfGoTestReachesEveryGroup(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"./demand", "./settle"}, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	text := strings.TrimSpace(stdout.String())
	var verdict struct {
		Produced, Unknown int
		Groups            map[string]struct {
			Distinct, Dead, Lost int
			OrderViolations      int `json:"order_violations"`
		}
	}
	if err := json.Unmarshal([]byte(text[strings.LastIndexByte(text, '\n')+1:]), &verdict); err != nil {
		t.Fatalf("last line: %v\n%s", err, text)
	}
	if verdict.Produced < 100 || verdict.Unknown != 0 || len(verdict.Groups) == 0 {
		t.Errorf("%+v", verdict)
	}
	for name, g := range verdict.Groups {
		if g.Lost != 0 || g.OrderViolations != 0 || g.Distinct+g.Dead != verdict.Produced {
			t.Errorf("group %s: %+v of %d", name, g, verdict.Produced)
		}
	}
}
