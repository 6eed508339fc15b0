// Package debugpage is what the debug handlers of all packages have in common:
// one look for people, one way to ask for JSON and for metrics, one word for
// each number.
//
// A package gives its picture as a [View] and its rules as a [Handler], and
// writes the body of its page through [Markup]. The page has no script, loads
// nothing, and whatever comes from outside passes [Markup.Text]. HTML is written
// by hand, without html/template: its reflection keeps methods of a whole program
// from being left out by the linker (ADR 0036, 0050).
//
// Nothing here runs by itself: rates come from a [Meter], which keeps what
// earlier looks saw.
package debugpage
