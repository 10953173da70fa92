package env

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// fileKey is a variable from a file of one of the pod's volumes, as an init container may have
// written it.
func (r *resolution) fileKey(ref *v1.FileKeySelector) (string, bool, error) {
	if r.sources.VolumeFile == nil {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	content, err := r.sources.VolumeFile(ref.VolumeName, ref.Path)
	if err != nil {
		return "", false, errors.New("couldn't parse env file")
	}
	value, err := fileVariable(string(content), ref.Key)
	switch {
	case err != nil:
		return "", false, errors.New("couldn't parse env file")
	case value != "":
		return value, true, nil
	case is(ref.Optional):
		return "", false, nil
	}
	return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
}

// fileVariable finds the first NAME='value' of that name in a file of such lines, empty if there is
// none. The format is a shell's without any expansion: a value is in single quotes, directly after
// the equals sign, and may span lines; a comment begins with #; a space after the equals sign makes
// the value empty, one before it is an error.
func fileVariable(content, name string) (string, error) {
	lines := strings.Split(strings.ReplaceAll(content, "\r\n", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return "", lineError(i, "missing '='")
		case strings.TrimRight(key, " \t") == "":
			return "", lineError(i, "empty variable name")
		case strings.TrimRight(key, " \t") != key:
			return "", lineError(i, "whitespace before '=' is not allowed")
		case strings.TrimLeft(value, " \t") != value:
			if key == name {
				return "", nil
			}
			continue
		case !strings.HasPrefix(value, "'"):
			return "", lineError(i, "value must be enclosed in single quotes")
		}
		first, value := i, value[1:]
		for !strings.Contains(value, "'") {
			if i++; i == len(lines) {
				return "", lineError(first, "unclosed single quote")
			}
			value += "\n" + lines[i]
		}
		value, rest, _ := strings.Cut(value, "'")
		if rest = strings.TrimLeft(rest, " \t"); rest != "" && rest[0] != '#' {
			return "", lineError(i, "unexpected content after closing quote")
		}
		if key == name {
			return value, nil
		}
	}
	return "", nil
}

func lineError(index int, what string) error {
	return fmt.Errorf("invalid environment variable format at line %d: %s", index+1, what)
}
