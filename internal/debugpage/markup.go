package debugpage

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // style
	"encoding/base64"
	"html"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock"
)

//go:embed page.css
var style string

// policy lets the page load nothing and run nothing; its own style is named by
// its hash.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// Markup writes HTML. Whatever comes from outside passes Text.
type Markup struct{ *bytes.Buffer }

// Raw writes markup of the calling package.
func (m Markup) Raw(parts ...string) {
	for _, p := range parts {
		m.WriteString(p)
	}
}

// Text writes text; it is safe between tags and in quoted attributes. What HTML
// has no character for becomes U+FFFD.
func (m Markup) Text(s string) {
	m.WriteString(html.EscapeString(strings.Map(printable, s)))
}

func printable(r rune) rune {
	if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0xfffe || r == 0xffff {
		return utf8.RuneError
	}
	return r
}

// Element writes an element that holds text. class may be "".
func (m Markup) Element(tag, class, text string) {
	m.Raw("<", tag)
	if class != "" {
		m.Raw(` class="`, class, `"`)
	}
	m.Raw(">")
	m.Text(text)
	m.Raw("</", tag, ">")
}

// Pair is a name and its value in a list of figures.
func (m Markup) Pair(name, value string) {
	m.Raw("<div>")
	m.Element("dt", "", name)
	m.Element("dd", "", value)
	m.Raw("</div>")
}

// Table begins a table. A column whose name begins with # holds numbers; one of
// numbers alone is as wide as they are.
func (m Markup) Table(caption string, columns ...string) {
	m.Raw(`<div class="scroll"><table`)
	if !slices.ContainsFunc(columns, func(c string) bool { return !strings.HasPrefix(c, "#") }) {
		m.Raw(` class="figures"`)
	}
	m.Raw(">")
	m.Element("caption", "", caption)
	m.Raw("<thead><tr>")
	for _, c := range columns {
		name, number := strings.CutPrefix(c, "#")
		if number {
			m.Raw(`<th scope="col" class="n">`)
		} else {
			m.Raw(`<th scope="col">`)
		}
		m.Text(name)
		m.Raw("</th>")
	}
	m.Raw("</tr></thead><tbody>\n")
}

// EndTable ends what Table began.
func (m Markup) EndTable() { m.Raw("</tbody></table></div>\n") }

// Numbers writes cells of numbers.
func (m Markup) Numbers(cells ...string) {
	for _, c := range cells {
		m.Element("td", "n", c)
	}
}

// Row begins a row about something of a severity, with its state in the first
// cell.
func (m Markup) Row(severity penstock.Severity, state string) {
	m.Raw(`<tr class="row-`, severity.String(), `">`, `<td class="state `, severity.String(), `">`)
	m.Text(mark(severity) + " " + Spoken(state))
	m.Raw("</td>")
}

// Badge writes a severity for those who see no colours.
func Badge(s penstock.Severity) string { return mark(s) + " " + s.String() }

func mark(s penstock.Severity) string {
	return [...]string{penstock.Fine: "●", penstock.Notice: "○", penstock.Warning: "▲", penstock.Alarm: "■"}[s]
}

// Spoken writes the name of a state for people: no consumer.
func Spoken(state string) string { return strings.ReplaceAll(state, "_", " ") }
