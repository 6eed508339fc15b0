module github.com/penstock/penstock/cmd/penstock

go 1.26.0

require (
	github.com/alecthomas/kong v1.17.0
	github.com/google/go-cmp v0.7.0
	github.com/penstock/penstock v0.0.0
	github.com/rogpeppe/go-internal v1.16.0
	golang.org/x/term v0.48.0
)

require (
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/tools v0.26.0 // indirect
)

replace github.com/penstock/penstock => ../..
