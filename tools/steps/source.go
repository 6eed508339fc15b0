package steps

import "embed"

// sources are the files of this package that the product's source is compiled
// with, in a package of the same name.
//
//go:embed doc.go atomic.go explore.go
var sources embed.FS

// WakeUpTest and TurnTest are tests of the waker and the turn in package seglog;
// see the attack wake-up.
var (
	//go:embed testdata/wakeup_test.go
	WakeUpTest string
	//go:embed testdata/turn_test.go
	TurnTest string
)

// Sources returns the text of this package's files by name, without this one.
func Sources() map[string]string {
	all := map[string]string{}
	for _, name := range []string{"doc.go", "atomic.go", "explore.go"} {
		data, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // they are embedded
		}
		all[name] = string(data)
	}
	return all
}
