module github.com/penstock/penstock

go 1.26.0
