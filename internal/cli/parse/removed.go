package parse

import (
	"errors"

	"github.com/spf13/pflag"
)

// removed is the value of a flag that is no more. Setting it is an error, with the remedy.
type removed string

func (removed) String() string     { return "" }
func (removed) Type() string       { return "string" }
func (r removed) Set(string) error { return errors.New("is not a flag any more: " + string(r)) }

// AddRemoved adds a flag of earlier versions, hidden: it says what to do instead.
func AddRemoved(flags *pflag.FlagSet, name, remedy string) {
	flags.Var(removed(remedy), name, "")
	flags.Lookup(name).Hidden = true
}
