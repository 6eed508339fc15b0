package queue

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // debugStyle
	"encoding/base64"
	"fmt"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

//go:embed debug.css
var debugStyle string

// debugPolicy lets the page load nothing and run nothing; its own style is
// named by its hash.
var debugPolicy = func() string {
	sum := sha256.Sum256([]byte(debugStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// Bounds of the page; the JSON has all.
const (
	maxRowsOfGroups     = 500
	maxTopicsOnPage     = 200
	maxPartitionsOfPage = 1024
	worstPartitions     = 8
)

// markup writes HTML. Whatever comes from outside passes text.
type markup struct{ *bytes.Buffer }

// raw writes markup of this package.
func (m markup) raw(parts ...string) {
	for _, p := range parts {
		m.WriteString(p)
	}
}

// text writes text; it is safe between tags and in quoted attributes. What HTML
// has no character for becomes U+FFFD.
func (m markup) text(s string) {
	m.WriteString(html.EscapeString(strings.Map(printable, s)))
}

func printable(r rune) rune {
	if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0xfffe || r == 0xffff {
		return utf8.RuneError
	}
	return r
}

// element writes an element that holds text. class may be "".
func (m markup) element(tag, class, text string) {
	m.raw("<", tag)
	if class != "" {
		m.raw(` class="`, class, `"`)
	}
	m.raw(">")
	m.text(text)
	m.raw("</", tag, ">")
}

// pair is a name and its value in a list of figures.
func (m markup) pair(name, value string) {
	m.raw("<div>")
	m.element("dt", "", name)
	m.element("dd", "", value)
	m.raw("</div>")
}

// table begins a table. A column whose name begins with # holds numbers; one of
// numbers alone is as wide as they are.
func (m markup) table(caption string, columns ...string) {
	m.raw(`<div class="scroll"><table`)
	if !slices.ContainsFunc(columns, func(c string) bool { return !strings.HasPrefix(c, "#") }) {
		m.raw(` class="figures"`)
	}
	m.raw(">")
	m.element("caption", "", caption)
	m.raw("<thead><tr>")
	for _, c := range columns {
		name, number := strings.CutPrefix(c, "#")
		if number {
			m.raw(`<th scope="col" class="n">`)
		} else {
			m.raw(`<th scope="col">`)
		}
		m.text(name)
		m.raw("</th>")
	}
	m.raw("</tr></thead><tbody>\n")
}

func (m markup) endTable() { m.raw("</tbody></table></div>\n") }

// numbers writes cells of numbers.
func (m markup) numbers(cells ...string) {
	for _, c := range cells {
		m.element("td", "n", c)
	}
}

// groupRow is a row of the first table.
type groupRow struct {
	topic int // index
	group *GroupStats
	id    string // of its section
}

func (v *debugView) writeHTML(b *bytes.Buffer) {
	m := markup{b}
	severity, verdict := v.verdict()
	m.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n" +
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n")
	if v.refresh > 0 {
		m.raw(`<meta http-equiv="refresh" content="`, strconv.Itoa(v.refresh), "\"/>\n")
	}
	m.raw("<title>")
	m.text(severity.String() + ": penstock queues")
	m.raw("</title>\n<style>", debugStyle, "</style></head>\n<body>\n<header><h1>penstock queues</h1>")
	m.element("p", "", "as of "+v.now.UTC().Format("2006-01-02 15:04:05.0 MST"))
	v.writeLinks(m)
	m.raw("</header>\n<main>\n")
	m.raw(`<p class="verdict `, severity.String(), `" role="status"><strong>`)
	m.text(badge(severity))
	m.raw("</strong> ")
	m.element("span", "", verdict)
	m.raw("</p>\n")
	rows := v.rows()
	v.writeRows(m, rows)
	for i := range v.topics {
		if i == maxTopicsOnPage {
			m.element("p", "dim", grouped(uint64(len(v.topics)-i))+" more topics are open; the JSON has them, and ?topic=NAME shows one.")
			break
		}
		v.writeTopic(m, i, rows)
	}
	m.raw("</main></body></html>\n")
}

// writeLinks offers the other forms of what is shown.
func (v *debugView) writeLinks(m markup) {
	link := func(text string, with ...string) {
		q := url.Values{}
		if v.only != "" {
			q.Set("topic", v.only)
		}
		for i := 0; i < len(with); i += 2 {
			q.Set(with[i], with[i+1])
		}
		m.raw(`<a href="?`)
		m.text(q.Encode())
		m.raw(`">`)
		m.text(text)
		m.raw("</a> ")
	}
	m.raw(`<nav aria-label="formats">`)
	link("JSON", "format", "json")
	link("metrics", "format", "prometheus")
	if v.refresh > 0 {
		link("stop refreshing every " + strconv.Itoa(v.refresh) + " s")
	} else {
		link("refresh every 5 s", "refresh", "5")
	}
	if v.only != "" {
		m.raw(`<a href="?">all topics</a> `)
	}
	m.raw("</nav>")
}

// rows returns all groups of all topics, who needs somebody first.
func (v *debugView) rows() []groupRow {
	var rows []groupRow
	for i := range v.topics {
		for j, g := range v.topics[i].bySeverity() {
			rows = append(rows, groupRow{i, g, fmt.Sprintf("t%dg%d", i, j)})
		}
	}
	sortRows(rows)
	return rows
}

// badge writes a severity for those who see no colours.
func badge(s Severity) string {
	return [...]string{Fine: "● fine", Notice: "○ notice", Warning: "▲ warning", Alarm: "■ alarm"}[s]
}

func (v *debugView) writeRows(m markup, rows []groupRow) {
	if len(rows) == 0 {
		if len(v.topics) > 0 {
			m.element("p", "dim", "No topic has a group.")
		}
		return
	}
	m.table("Groups, the most urgent first", "state", "group", "topic", "why", "#lag", "#oldest", "#in", "#out", "#drains in", "#in hand", "#retrying", "#parked", "#dead")
	for i, r := range rows {
		if i == maxRowsOfGroups {
			m.raw("<tr>")
			m.raw(`<td colspan="13">`)
			m.text(grouped(uint64(len(rows)-i)) + " more groups; the JSON has them.")
			m.raw("</td></tr>\n")
			break
		}
		g := r.group
		severity := g.Severity()
		m.raw(`<tr class="row-`, severity.String(), `">`)
		m.raw(`<td class="state `, severity.String(), `">`)
		m.text([...]string{Fine: "● ", Notice: "○ ", Warning: "▲ ", Alarm: "■ "}[severity] + strings.ReplaceAll(g.State.String(), "_", " "))
		m.raw(`</td><td class="name">`)
		if r.topic < maxTopicsOnPage {
			m.raw(`<a href="#`, r.id, `">`)
			m.text(g.Name)
			m.raw("</a>")
		} else {
			m.text(g.Name)
		}
		m.raw("</td>")
		m.element("td", "name", v.topicName(r.topic))
		m.element("td", "why", g.Why)
		m.numbers(grouped(g.Lag), lagText(g), rateText(g.Rates, g.In), rateText(g.Rates, g.Out), drainText(g), count0(g.Run.InHand), count0(g.Run.Waiting),
			count0(g.Parked.Keys), grouped(g.Run.DeadLettered))
		m.raw("</tr>\n")
	}
	m.endTable()
}

func (v *debugView) topicName(i int) string {
	if n := v.copies[i]; n > 0 {
		return v.topics[i].Name + " (" + strconv.Itoa(n) + ")"
	}
	return v.topics[i].Name
}

func count0(n int) string { return grouped(uint64(max(0, n))) }

func lagText(g *GroupStats) string {
	if g.Lag == 0 || g.LagTime == 0 {
		return "–"
	}
	return span(g.LagTime)
}

func rateText(r Rates, value float64) string {
	if r.Over == 0 {
		return "?"
	}
	return rate(value)
}

func drainText(g *GroupStats) string {
	switch {
	case g.Lag == 0:
		return "–"
	case g.Over == 0:
		return "?"
	case g.Drain == NeverDrains:
		return "never"
	}
	return span(g.Drain)
}

func ago(now, t time.Time) string {
	return span(max(0, now.Sub(t))) + " ago"
}
