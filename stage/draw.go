package stage

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

// DOT draws the picture in the language of Graphviz, from left to right: a node
// per stage with its state, an edge per subscription with what was asked for
// and not sent, and what is in flight. What holds the graph up is drawn bold.
// Stages that share a goroutine stand in one box.
func (s Status) DOT() string {
	var b strings.Builder
	b.WriteString("digraph penstock {\n\trankdir=LR;\n\tnode [shape=box, style=rounded];\n")
	for _, group := range s.executors() {
		indent := "\t"
		if len(group) > 1 {
			fmt.Fprintf(&b, "\tsubgraph cluster_%d {\n\t\tstyle=dotted; label=\"one goroutine\";\n", s.Stages[group[0]].Executor)
			indent = "\t\t"
		}
		for _, i := range group {
			st := &s.Stages[i]
			fmt.Fprintf(&b, "%sn%d [label=\"%s\\n%s\"%s];\n", indent, i, dotText(st.Name), dotText(st.caption()), dotColour(st.State))
		}
		if len(group) > 1 {
			b.WriteString("\t}\n")
		}
	}
	for i := range s.Edges {
		e := &s.Edges[i]
		style := ""
		if e.Constraint {
			style = ", color=\"#a8161b\", penwidth=2.5"
		}
		if e.Cancelled {
			style += ", style=dashed"
		}
		fmt.Fprintf(&b, "\t%s -> %s [label=\"%s\"%s];\n", dotNode(e.from, e.From), dotNode(e.to, e.To), dotText(e.caption()), style)
	}
	b.WriteString("}\n")
	return b.String()
}

// Mermaid draws the picture as a Mermaid flowchart; it shows what [Status.DOT]
// does.
func (s Status) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	for i := range s.Stages {
		st := &s.Stages[i]
		fmt.Fprintf(&b, "\tn%d[\"%s<br/>%s\"]\n", i, mermaidText(st.Name), mermaidText(st.caption()))
	}
	outside := 0
	node := func(at int, name string) string {
		if at >= 0 {
			return "n" + strconv.Itoa(at)
		}
		outside++
		return fmt.Sprintf("x%d[\"%s\"]", outside, mermaidText(name))
	}
	constraint := -1
	for i := range s.Edges {
		e := &s.Edges[i]
		arrow := "-->"
		if e.Cancelled {
			arrow = "-.->"
		}
		if e.Constraint {
			arrow, constraint = "==>", i
		}
		from := node(e.from, e.From)
		fmt.Fprintf(&b, "\t%s %s|\"%s\"| %s\n", from, arrow, mermaidText(e.caption()), node(e.to, e.To))
	}
	if constraint >= 0 {
		fmt.Fprintf(&b, "\tlinkStyle %d stroke:#a8161b\n", constraint)
	}
	return b.String()
}

// executors groups the stages that share a goroutine, in order.
func (s *Status) executors() (groups [][]int) {
	at := map[int]int{}
	for i := range s.Stages {
		x := s.Stages[i].Executor
		if g, ok := at[x]; ok && x >= 0 {
			groups[g] = append(groups[g], i)
			continue
		}
		at[x] = len(groups)
		groups = append(groups, []int{i})
	}
	return groups
}

func (s *StageStatus) caption() string {
	text := s.Kind.String() + ", " + debugpage.Spoken(s.State.String())
	if s.Over > 0 && s.OutPerSecond > 0 {
		text += ", " + debugpage.Rate(s.OutPerSecond)
	}
	if s.Buffered > 0 {
		text += ", holds " + debugpage.Grouped(uint64(s.Buffered))
	}
	if s.Discarded > 0 {
		text += ", dropped " + debugpage.Grouped(uint64(s.Discarded))
	}
	return text
}

func (e *EdgeStatus) caption() string {
	text := ""
	if e.Partition >= 0 {
		text = fmt.Sprintf("[%d] ", e.Partition)
	}
	return text + "open " + debugpage.Grouped(uint64(max(0, e.Open))) + ", in flight " + debugpage.Grouped(uint64(max(0, e.InFlight)))
}

// dotNode returns the node of a stage; one of another graph goes by its name.
func dotNode(at int, name string) string {
	if at >= 0 {
		return "n" + strconv.Itoa(at)
	}
	return `"` + dotText(name) + `"`
}

func dotColour(s State) string {
	switch s.Severity() {
	case penstock.Alarm:
		return ", color=\"#a8161b\""
	case penstock.Warning:
		return ", color=\"#8a5300\""
	}
	return ""
}

var (
	dotEscapes     = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ", "\r", " ")
	mermaidEscapes = strings.NewReplacer("#", "#35;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "&", "#amp;", "`", "#96;", "\n", " ", "\r", " ")
)

func dotText(s string) string     { return dotEscapes.Replace(strings.ToValidUTF8(s, "\uFFFD")) }
func mermaidText(s string) string { return mermaidEscapes.Replace(strings.ToValidUTF8(s, "\uFFFD")) }
