// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"flag"
	"os"
	"strings"
	"testing"
)

// header begins every Go file. The blank line separates it from the package's documentation.
const header = "// Copyright The Berth Authors\n// SPDX-License-Identifier: Apache-2.0\n\n"

var updateHeaders = flag.Bool("headers", false, "write missing license headers")

func TestEveryFileNamesItsLicense(t *testing.T) {
	for _, path := range goFiles(t) {
		text, err := os.ReadFile(path)
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.HasPrefix(string(text), header):
		case *updateHeaders:
			if err := os.WriteFile(path, append([]byte(header), text...), 0o600); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("%s has no license header: go test ./internal/layout -run License -headers", path)
		}
	}
}
