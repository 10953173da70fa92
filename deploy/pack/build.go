// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
)

// kubelet is the name of upstream's kubelet, which `berth agent` runs to make a machine a node.
const kubelet = "kubelet"

// Platform is the target of programs.
type Platform struct{ OS, Architecture string }

// String returns the form linux-amd64.
func (p Platform) String() string { return p.OS + "-" + p.Architecture }

// compilerFlags equal the Makefile's, to share its compilation results.
const compilerFlags = "-gcflags=all=-dwarf=false '-toolexec=env GOGC=off GOMEMLIMIT=1GiB'"

// Compile compiles programs for a platform into a folder. They contain neither paths of this
// machine nor a build id.
func Compile(root string, p Platform, version, folder string, programs ...string) error {
	kubernetes, minor, err := kubernetesOf(root)
	if err != nil {
		return err
	}
	const variables = "k8s.io/component-base/version"
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X %s.gitVersion=%s -X "+
		"%[2]s.gitMajor=1 -X %[2]s.gitMinor=%[4]s", version, variables, kubernetes, minor)
	build := func(module string, packages ...string) error {
		arguments := []string{"build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags, "-o",
			folder + string(filepath.Separator)}
		build := exec.Command("go", append(arguments, packages...)...)
		build.Dir = filepath.Join(root, module)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture, "GOWORK=off", "GOFLAGS="+compilerFlags)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("go build for %s: %w", p, err)
		}
		return nil
	}
	var own, others []string
	for _, program := range programs {
		if slices.Contains(integrations, program) {
			others = append(others, "./cmd/"+program)
			continue
		}
		if program == kubelet { // built from upstream's sources, in the module of the control plane
			if err := build("controlplane", "k8s.io/kubernetes/cmd/kubelet"); err != nil {
				return err
			}
			continue
		}
		own = append(own, "./cmd/"+program)
	}
	if len(others) > 0 {
		if err := build("integrations", others...); err != nil {
			return err
		}
	}
	return build(".", own...)
}

// kubernetesOf returns the version that Kubernetes' libraries report, and its minor version. It
// derives them from the version of client-go in go.mod, like the Makefile.
func kubernetesOf(root string) (version, minor string, err error) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", "", err
	}
	found := regexp.MustCompile(`(?m)^\s*k8s\.io/client-go v0(\.(\d+)\.\S+)$`).FindSubmatch(text)
	if found == nil {
		return "", "", fmt.Errorf("%s requires no k8s.io/client-go", filepath.Join(root, "go.mod"))
	}
	return "v1" + string(found[1]), string(found[2]), nil
}
