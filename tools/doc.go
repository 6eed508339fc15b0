// Package tools is the module of the programs that check penstock: formatting,
// vet, staticcheck and cross-builds (cmd/check), the tests of every module
// (cmd/gotest), planted faults (cmd/planted) and attacks on the claims
// (cmd/prove). They are a module of their own, so that a user of penstock
// never downloads what only its checks need. The Makefile runs them.
package tools
