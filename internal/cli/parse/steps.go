// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/usage"
)

// Steps parses the operations of what-if.
type Steps struct {
	General *pflag.FlagSet // flags permitted anywhere
	Path    string         // command path for messages
	Catalog []string       // catalog files for provision

	spaces []*string // namespaces of objects named without a namespace
}

// Read splits the arguments at the words that begin operations, and parses each part with the flags
// permitted there.
func (s *Steps) Read(args []string) (steps []whatif.Step, err error) {
	first := FirstOperation(args)
	if err := s.General.Parse(args[:first]); err != nil {
		return nil, wrongFlag(err, s.Path)
	}
	if s.General.NArg() > 0 {
		return nil, usage.Errorf("%q is not an operation: must be one of %s", s.General.Arg(0), strings.Join(OperationWords(), ", "))
	}

	for args = args[first:]; len(args) > 0; {
		next := 1 + FirstOperation(args[1:])
		step, err := s.readOne(operationOf(args[0]), args[1:next])
		if err != nil {
			return nil, err
		}
		steps, args = append(steps, *step), args[next:]
	}
	return steps, nil
}

// CheckProvision requires provision to be the last operation and to have a catalog.
func (s *Steps) CheckProvision(steps []whatif.Step) error {
	i := slices.IndexFunc(steps, func(step whatif.Step) bool { return step.Catalog != nil })
	switch {
	case i >= 0 && i < len(steps)-1:
		return usage.Errorf("provision: is for what the other operations leave pending: name it last")
	case i >= 0 && len(s.Catalog) == 0:
		return usage.Errorf("provision: no catalog specified: use provision --catalog FILE, with NodePools and instance "+
			"types, or Nodes with the annotation %s", provision.PriceAnnotation)
	}
	return nil
}

// Within sets the namespace of objects named without one.
func (s *Steps) Within(namespace string) {
	for _, space := range s.spaces {
		*space = namespace
	}
}

func (s *Steps) readOne(o *operation, args []string) (*whatif.Step, error) {
	p := &parts{word: o.word}
	flags := o.newFlags(p)
	s.General.VisitAll(func(flag *pflag.Flag) {
		if o.word != "apply" || flag.Name != "filename" && flag.Name != "kustomize" {
			flags.AddFlag(flag)
		}
	})

	if err := flags.Parse(args); err != nil {
		return nil, wrongFlag(err, s.Path)
	}
	p.sort(o, flags.Args())
	step := &whatif.Step{Operation: &p.operation}
	if err := o.read(p, step); err != nil {
		return nil, err
	}

	s.Catalog = append(s.Catalog, p.catalog...)
	if p.space != nil {
		s.spaces = append(s.spaces, p.space)
	}
	step.Words = s.wordsOf(o.word, flags)
	return step, nil
}

// wordsOf returns the operation's words without the global flags.
func (s *Steps) wordsOf(word string, flags *pflag.FlagSet) string {
	list := append([]string{word}, flags.Args()...)
	flags.Visit(func(flag *pflag.Flag) {
		switch value := flag.Value.String(); {
		case s.General.Lookup(flag.Name) == flag:
		case flag.Value.Type() == "bool" && value == "true":
			list = append(list, "--"+flag.Name)
		case flag.Value.Type() == "bool":
			list = append(list, "--"+flag.Name+"="+value)
		default:
			list = append(list, "--"+flag.Name, strings.Trim(value, "[]"))
		}
	})
	return strings.Join(list, " ")
}

// FirstOperation returns the index of the first word that begins an operation, or the number of
// words.
func FirstOperation(args []string) int {
	if i := slices.IndexFunc(args, func(word string) bool { return operationOf(word) != nil }); i >= 0 {
		return i
	}
	return len(args)
}

// OperationWords returns the words that begin operations.
func OperationWords() []string {
	return answer.Mapped(operations, func(o operation) string { return o.word })
}

// OperationFlags returns the operation's flags beyond the global ones.
func OperationFlags(word string) *pflag.FlagSet {
	if o := operationOf(word); o != nil {
		return o.newFlags(&parts{word: word})
	}
	return pflag.NewFlagSet(word, pflag.ContinueOnError)
}

// NamedBy returns the kinds accepted after an operation. If bare is true, names without a type are
// accepted as well.
func NamedBy(word string) (kinds []Kind, bare bool) {
	o := operationOf(word)
	if o == nil {
		return nil, false
	}
	if o.ofNodes {
		return []Kind{Node}, true
	}
	return o.names, false
}

func operationOf(word string) *operation {
	return rules.Find(operations, func(o *operation) bool { return o.word == word })
}
