// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Programs lists the programs built by Build, in one folder. All versions use the same etcd,
// because the API servers' use of etcd has not changed.
var Programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

const etcd = "github.com/berth-k8s/berth/test/cmd/benchlive/etcd"

// Build builds the programs of a release, such as v1.35.4, in a folder below dir, and returns that
// folder. It reuses earlier builds. The working folder must be in this module, as in tests.
func Build(ctx context.Context, dir, release string) (bin string, err error) {
	dir = filepath.Join(dir, release)
	bin = filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	if _, err := run(ctx, "", "go", "build", "-o", filepath.Join(bin, "etcd"), etcd); err != nil {
		return "", err
	}
	own, err := requirements(ctx, dir, release)
	if err != nil {
		return "", err
	}
	text, err := own.module(release)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o644); err != nil {
		return "", err
	}
	// The build adds the checksums of the requirements to go.sum, and verifies them with Go's
	// checksum database.
	args := []string{"build", "-mod=mod", "-buildvcs=false", "-ldflags", linkerFlags(release), "-o", bin + string(filepath.Separator)}
	for _, program := range Programs[1:] {
		args = append(args, kubernetesModule+"/cmd/"+program)
	}
	_, err = run(ctx, dir, "go", args...)
	return bin, err
}

// goMod is the output of `go mod edit -json`.
type goMod struct {
	Go      string
	Godebug []struct{ Key, Value string }
	Require []struct {
		Path, Version string
		Indirect      bool
	}
}

// requirements returns the go.mod file of a release of k8s.io/kubernetes.
func requirements(ctx context.Context, dir, release string) (*goMod, error) {
	out, err := run(ctx, dir, "go", "mod", "download", "-json", kubernetesModule+"@"+release)
	if err != nil {
		return nil, err
	}
	var module struct{ GoMod string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, err
	}
	if out, err = run(ctx, "", "go", "mod", "edit", "-json", module.GoMod); err != nil {
		return nil, err
	}
	own := &goMod{}
	return own, json.Unmarshal(out, own)
}

// unpublished is the version of the modules released together with k8s.io/kubernetes in its go.mod
// file. On the module proxy they have versions v0.N.P.
const unpublished = "v0.0.0"

// module returns a go.mod file that builds the programs as in the release: with the same
// dependencies, the same language version and the same runtime defaults.
func (m *goMod) module(release string) ([]byte, error) {
	v, err := version.ParseSemantic(release)
	if err != nil {
		return nil, err
	}

	var text strings.Builder
	fmt.Fprintf(&text, "module versions\n\ngo %s\n\n", m.Go)
	for _, setting := range m.Godebug {
		fmt.Fprintf(&text, "godebug %s=%s\n", setting.Key, setting.Value)
	}

	fmt.Fprintf(&text, "require %s %s\n", kubernetesModule, release)
	for _, r := range m.Require {
		needed := r.Version
		if needed == unpublished {
			needed = fmt.Sprintf("v0.%d.%d", v.Minor(), v.Patch())
			fmt.Fprintf(&text, "replace %s => %s %s\n", r.Path, r.Path, needed)
		}
		fmt.Fprintf(&text, "require %s %s // indirect\n", r.Path, needed)
	}

	return []byte(text.String()), nil
}

// linkerFlags returns the flags that set the version in the programs.
func linkerFlags(release string) string {
	v := version.MustParseSemantic(release)
	const at = "k8s.io/component-base/version"
	return fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]d -X %[1]s.gitMinor=%[4]d", at, release, v.Major(), v.Minor())
}
