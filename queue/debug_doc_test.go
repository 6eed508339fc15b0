package queue

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestObservabilityIsDocumented: every metric, every state and every field of
// the JSON stands in docs/observability.md, and no metric that does not exist.
func TestObservabilityIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"penstock_queue_topics": true}
	for _, m := range metrics {
		known[m.Name] = true
		if !strings.Contains(string(text), "| `"+m.Name+"` | "+m.Kind+" | ") {
			t.Errorf("docs/observability.md does not list %s %s", m.Kind, m.Name)
		}
	}
	for word := range strings.FieldsFuncSeq(string(text), func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		if strings.HasPrefix(word, "penstock_queue_") && !known[word] {
			t.Errorf("docs/observability.md lists %s, which does not exist", word)
		}
	}
	for s := State(0); s < states; s++ {
		if !strings.Contains(string(text), "| `"+s.String()+"` | "+s.Severity().String()+" | ") {
			t.Errorf("docs/observability.md does not list state %s, %s", s, s.Severity())
		}
	}
	fields := 0
	for typ := range jsonTypes(reflect.TypeFor[jsonView](), map[reflect.Type]bool{}) {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			fields++
			if name == "" || !strings.Contains(string(text), "| `"+name+"` | ") {
				t.Errorf("docs/observability.md does not list field %q of %s", name, typ.Name())
			}
		}
	}
	if fields < 90 {
		t.Errorf("only %d fields", fields)
	}
}

// TestObservabilitySaysHowManyLines: what a topic and a group can have at most.
func TestObservabilitySaysHowManyLines(t *testing.T) {
	text, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	s := Stats{Storage: "disk", Capacity: 1, CapacityBytes: 1, CapacityDisk: 1, UsedDisk: 1, Partitions: make([]PartitionStats, 1)}
	g := GroupStats{Rate: 1, LastError: &GroupError{Time: time.Now()}}
	topic, group := 0, 0
	for _, m := range metrics {
		if m.topic != nil {
			topic += len(m.topic(&s))
		} else {
			group += len(m.group(&debugView{}, &g))
		}
	}
	if want := fmt.Sprintf("a topic has at most %d lines, a group at most %d.", topic, group); !strings.Contains(string(text), want) {
		t.Errorf("docs/observability.md does not say: %s", want)
	}
	for w := Wait; w <= DropOldest; w++ {
		if !strings.Contains(string(text), "`"+w.String()+"`") {
			t.Errorf("docs/observability.md does not say that when_full may be %v", w)
		}
	}
}

// jsonTypes returns the structs of this package that a type is made of.
func jsonTypes(typ reflect.Type, seen map[reflect.Type]bool) map[reflect.Type]bool {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		jsonTypes(typ.Elem(), seen)
	case reflect.Struct:
		if typ.PkgPath() != reflect.TypeFor[jsonView]().PkgPath() || seen[typ] {
			break
		}
		seen[typ] = true
		for i := range typ.NumField() {
			jsonTypes(typ.Field(i).Type, seen)
		}
	}
	return seen
}
