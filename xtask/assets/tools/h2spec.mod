module h2spec

go 1.24.0

require (
	github.com/fatih/color v1.18.0
	github.com/spf13/cobra v1.9.1
	github.com/summerwind/h2spec v2.2.1+incompatible
	golang.org/x/net v0.43.0
)
