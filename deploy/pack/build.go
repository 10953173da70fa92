package pack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// kubernetes is the version that Kubernetes' libraries report of themselves, as in the Makefile.
const kubernetes = "v1.36.3"

// kubelet is upstream's, with which `berth agent` makes a machine a node.
const kubelet = "kubelet"

// Platform is what programs run on.
type Platform struct{ OS, Architecture string }

// String is as in linux-amd64.
func (p Platform) String() string { return p.OS + "-" + p.Architecture }

// Compile compiles programs for a platform into a folder. The paths of this machine are not in
// them, nor is a build id.
func Compile(root string, p Platform, version, folder string, programs ...string) error {
	const variables = "k8s.io/component-base/version"
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X %s.gitVersion=%s -X %[2]s.gitMajor=1 -X %[2]s.gitMinor=36", version, variables, kubernetes)
	build := func(module string, packages ...string) error {
		arguments := []string{"build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags, "-o", folder + string(filepath.Separator)}
		build := exec.Command("go", append(arguments, packages...)...)
		build.Dir = filepath.Join(root, module)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture, "GOWORK=off", "GOFLAGS=")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("go build for %s: %w", p, err)
		}
		return nil
	}
	var own []string
	for _, program := range programs {
		if program == kubelet { // upstream's, of the module that the control plane is built from
			if err := build("controlplane", "k8s.io/kubernetes/cmd/kubelet"); err != nil {
				return err
			}
			continue
		}
		own = append(own, "./cmd/"+program)
	}
	return build(".", own...)
}
