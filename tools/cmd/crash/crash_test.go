package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/tools/internal/verdict"
)

func TestMain(m *testing.M) { leak.Main(m) }

// script writes a shell script that stands for the binary.
func script(t *testing.T, text string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("shell scripts do not run on windows")
	}
	path := filepath.Join(t.TempDir(), "penstock")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEachRunIsJudged(t *testing.T) {
	good := script(t, `echo '{"produced":2,"crashes":1,"rss_max_mib":9,"groups":{"emails":{"delivered":2,"distinct":2,"max_lag":1}}}'`)
	var out bytes.Buffer
	if err := run(t.Context(), verdict.Run{Binary: good, For: time.Second, Crashes: 1, Seed: 7}, 2, &out); err != nil {
		t.Fatal(err)
	}
	var seeds []uint64
	for dec := json.NewDecoder(&out); dec.More(); {
		var l line
		if err := dec.Decode(&l); err != nil {
			t.Fatal(err)
		}
		if !l.OK {
			t.Errorf("%+v", l)
		}
		seeds = append(seeds, l.Seed)
	}
	if len(seeds) != 2 || seeds[0] != 7 || seeds[1] != 8 {
		t.Errorf("seeds %v, want 7 and 8", seeds)
	}
}

func TestABadRunFails(t *testing.T) {
	for name, text := range map[string]string{
		"lost":   `echo '{"produced":2,"crashes":1,"rss_max_mib":9,"groups":{"emails":{"delivered":1,"distinct":1,"lost":1,"max_lag":1}}}'`,
		"exit 1": `echo '{"produced":2,"crashes":1,"rss_max_mib":9,"groups":{"emails":{"delivered":2,"distinct":2,"max_lag":1}}}'; exit 1`,
		"silent": `exit 0`,
	} {
		var out bytes.Buffer
		if err := run(t.Context(), verdict.Run{Binary: script(t, text), For: time.Second, Crashes: 1}, 1, &out); err == nil {
			t.Errorf("%s: accepted: %s", name, out.String())
		}
	}
}
