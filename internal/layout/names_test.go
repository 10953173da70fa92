// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackageNamesOccurOnce verifies that package names are unique across all modules. A unique
// name needs no alias where it is imported, and identifies the package in comments, stack traces
// and search results. Programs are exempt.
func TestPackageNamesOccurOnce(t *testing.T) {
	folders := map[string]string{}
	for _, path := range goFiles(t) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		name, folder := strings.TrimSuffix(file.Name.Name, "_test"), filepath.Dir(path)
		if first, found := folders[name]; found && first != folder && name != "main" {
			t.Errorf("package %s is in %s and %s: rename one of them", name, first, folder)
		}
		folders[name] = folder
	}
}
