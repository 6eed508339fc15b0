package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(childMain(role))
	}
	leak.Main(m)
}

func init() {
	roles["test-echo"] = func(args []string) error {
		_, err := os.Stdout.WriteString(strings.Join(args, " ") + "\n")
		return err
	}
	roles["test-hang"] = func([]string) error {
		_, _ = os.Stdout.WriteString("ready\n")
		select {}
	}
	roles["test-fail"] = func([]string) error { return errors.New("the reason") }
}

func TestOutcomesOfAnAttack(t *testing.T) {
	for want, err := range map[string]error{held: nil, broken: errors.New("lost"), notRun: skip("no root")} {
		a := attack{claim: "c", fault: "f", run: func(context.Context, *lab) (string, error) { return "fine", err }}
		got := try(t.Context(), nil, a)
		if got.Result != want || got.Claim != "c" || got.Fault != "f" {
			t.Errorf("%v: %+v", err, got)
		}
		if err != nil && got.Detail != err.Error() {
			t.Errorf("%v: detail %q", err, got.Detail)
		}
	}
}

func TestEveryAttackHasItsOwnNameAndWords(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks {
		if seen[a.name] || a.name == "" || a.claim == "" || a.fault == "" || a.run == nil {
			t.Errorf("%+v", a)
		}
		seen[a.name] = true
	}
	if _, err := choose([]string{"nothing"}); err == nil {
		t.Error("an unknown attack is accepted")
	}
}

// TestTheReadmeNamesAttacksThatExist keeps the table of claims true.
func TestTheReadmeNamesAttacksThatExist(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	guarantees, err := os.ReadFile("../../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attacks {
		if !bytes.Contains(guarantees, []byte("`"+a.name+"`")) {
			t.Errorf("docs/guarantees.md does not name the attack %s", a.name)
		}
	}
	for line := range bytes.Lines(readme) {
		_, names, ok := bytes.Cut(line, []byte("`make prove` ("))
		if !ok {
			continue
		}
		names, _, _ = bytes.Cut(names, []byte(")"))
		for name := range strings.SplitSeq(string(names), ",") {
			if _, err := choose([]string{strings.Trim(name, " `")}); err != nil {
				t.Errorf("README: %v", err)
			}
		}
	}
}

func TestChildrenSpeakAndDie(t *testing.T) {
	l := &lab{temp: t.TempDir()}
	c, err := l.startRole(t.Context(), nil, "test-echo", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := c.wait(); err != nil || len(lines) != 1 || lines[0] != "a b" {
		t.Errorf("%q, %v", lines, err)
	}
	if c, err = l.startRole(t.Context(), nil, "test-hang"); err != nil {
		t.Fatal(err)
	}
	if text, err := c.next(t.Context()); text != "ready" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	c.kill()
	if c, err = l.startRole(t.Context(), nil, "test-fail"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.next(t.Context()); err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("%v does not say why the child ended", err)
	}
	if _, err := c.wait(); err == nil {
		t.Error("a child that failed counts as good")
	}
}

func TestATestThatDidNotRunProvesNothing(t *testing.T) {
	l, err := newLab()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if err := l.test(t.Context(), ".", "./demand", "TestMaximumThatDoesNotExist"); err == nil {
		t.Error("a test that does not exist counts as passed")
	}
	if err := l.test(t.Context(), ".", "./demand", "TestCancelReportsItsCause"); err != nil {
		t.Error(err)
	}
}

func TestClearTailTearsTheNewestEvent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.seg")
	if err := os.WriteFile(path, []byte("event 58 event 59!!\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clearTail([]string{path}, 3); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "event 58 event 5\x00\x00\x00\x00\x00" {
		t.Errorf("%q", got)
	}
	if err := clearTail([]string{path}, 1); err == nil {
		t.Error("no error although no segment holds the last event")
	}
}

func TestCountsAreCompared(t *testing.T) {
	if err := sameCounts(map[string]int{"a": 1}, map[string]int{"a": 1}); err != nil {
		t.Error(err)
	}
	for _, got := range []map[string]int{{}, {"a": 2}, {"a": 1, "b": 1}} {
		if err := sameCounts(got, map[string]int{"a": 1}); err == nil {
			t.Errorf("%v counts as good", got)
		}
	}
}

func TestLastLineSkipsBlankOnes(t *testing.T) {
	if got := lastLine([]string{"a", " b ", "", " "}); got != "b" {
		t.Errorf("%q", got)
	}
	if got := lastLine(nil); got != "" {
		t.Errorf("%q", got)
	}
}
