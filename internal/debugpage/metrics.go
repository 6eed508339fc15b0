package debugpage

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Metric is what the Prometheus text format says of a family: its name, gauge
// or counter, and a sentence. Values are in base units.
type Metric struct{ Name, Kind, Help string }

// Value is a value with one further label, or without when Name is "".
type Value struct {
	Name, Label string
	Value       float64
}

// With is a value with one further label.
func With(name, label string, value float64) Value {
	return Value{Name: name, Label: label, Value: value}
}

// One is a value without a further label.
func One(f float64) []Value { return []Value{{Value: f}} }

// Truth is 1 for true and 0 for false.
func Truth(b bool) []Value {
	if b {
		return One(1)
	}
	return One(0)
}

// Known is a value that is not told when it is 0.
func Known(f float64) []Value {
	if f == 0 {
		return nil
	}
	return One(f)
}

// Write writes the lines of one thing, whose labels come from [Label], and
// before the first of the family what it is. begun is the family's.
func (m *Metric) Write(b *strings.Builder, begun *bool, labels string, values []Value) {
	if len(values) > 0 && !*begun {
		*begun = true
		b.WriteString("# HELP " + m.Name + " " + m.Help + "\n# TYPE " + m.Name + " " + m.Kind + "\n")
	}
	for _, v := range values {
		all := labels
		if v.Name != "" {
			if all != "" {
				all += ","
			}
			all += Label(v.Name, v.Label)
		}
		b.WriteString(m.Name)
		if all != "" {
			b.WriteString("{" + all + "}")
		}
		b.WriteString(" " + strconv.FormatFloat(v.Value, 'g', -1, 64) + "\n")
	}
}

// Label writes a label: name="value".
func Label(name, value string) string { return name + `="` + escapeLabel(value) + `"` }

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// escapeLabel writes a name as the value of a label. The format is UTF-8; a
// byte that is not becomes the text \xff, and a backslash before an x becomes
// \x5c, so that no two names have one label.
func escapeLabel(s string) string {
	if utf8.ValidString(s) && !strings.Contains(s, `\x`) {
		return labelEscapes.Replace(s)
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 || strings.HasPrefix(s, `\x`) {
			fmt.Fprintf(&b, `\\x%02x`, s[0])
		} else {
			b.WriteString(labelEscapes.Replace(s[:n]))
		}
		s = s[n:]
	}
	return b.String()
}
