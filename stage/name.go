package stage

import "github.com/penstock/penstock"

// takeName makes name one of the graph's names, or says that it cannot.
func (g *Graph) takeName(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case name == "":
		return &penstock.FieldError{Field: "name", Reason: "is empty"}
	case g.names[name]:
		return errTaken("name", name)
	}
	if g.names == nil {
		g.names = map[string]bool{}
	}
	g.names[name] = true
	return nil
}

// refuseUnstarted has Start return err. Once the graph runs, whoever uses what
// is wrong is told.
func (g *Graph) refuseUnstarted(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.started {
		g.refuse(err)
	}
}
