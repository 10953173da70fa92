package env

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// expand replaces each $(NAME) by value(NAME). $$ is a dollar sign, so that $$(NAME) becomes
// $(NAME); all other dollar signs are kept.
func expand(input string, value func(name string) string) string {
	var out strings.Builder
	for {
		dollar := strings.IndexByte(input, '$')
		if dollar < 0 || dollar == len(input)-1 {
			out.WriteString(input)
			return out.String()
		}
		out.WriteString(input[:dollar])
		rest := input[dollar+1:]
		switch rest[0] {
		case '$':
			out.WriteByte('$')
			input = rest[1:]
		case '(':
			end := strings.IndexByte(rest, ')')
			if end < 0 { // never closed: it is text
				out.WriteString("$(")
				input = rest[1:]
				continue
			}
			out.WriteString(value(rest[1:end]))
			input = rest[end+1:]
		default:
			_, size := utf8.DecodeRuneInString(rest)
			out.WriteString("$" + rest[:size])
			input = rest[size:]
		}
	}
}

// known looks a name up in one map after the other. A name that is in none is kept as written.
func known(lists ...map[string]string) func(string) string {
	return func(name string) string {
		for _, list := range lists {
			if value, ok := list[name]; ok {
				return value
			}
		}
		return "$(" + name + ")"
	}
}

func expandAll(words []string, value func(string) string) []string {
	var out []string
	for _, word := range words {
		out = append(out, expand(word, value))
	}
	return out
}

// ExpandStatic expands the command of an exec probe. It knows only values that are in the pod's
// spec; a variable that gets its value from elsewhere counts as empty.
func ExpandStatic(command []string, vars []v1.EnvVar) []string {
	values := map[string]string{}
	for _, variable := range vars {
		values[variable.Name] = variable.Value
	}
	return expandAll(command, known(values))
}

// SubPath is where in its volume a mount begins: its subPath, or its expanded subPathExpr, in which
// no variable may be empty.
func SubPath(mount v1.VolumeMount, vars []Variable) (string, error) {
	if mount.SubPathExpr == "" {
		return mount.SubPath, nil
	}
	values := map[string]string{}
	for _, variable := range vars {
		values[variable.Name] = variable.Value
	}
	missing := sets.New[string]()
	path := expand(mount.SubPathExpr, func(name string) string {
		if values[name] == "" {
			missing.Insert(name)
		}
		return values[name]
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("missing value for %s", strings.Join(slices.Sorted(slices.Values(missing.UnsortedList())), ", "))
	}
	return path, nil
}
