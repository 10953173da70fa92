package cri

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The paths of the machine that every container sees masked or read-only, as in Docker and the
// kubelet.
var (
	maskedPaths = sync.OnceValue(func() []string {
		paths := []string{
			"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
			"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
		}
		throttle, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle")
		return append(paths, throttle...)
	})
	readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// effective is the container's security context merged over the pod's.
func effective(pod *v1.Pod, c *v1.Container) v1.SecurityContext {
	var out v1.SecurityContext
	if c.SecurityContext != nil {
		out = *c.SecurityContext
	}
	p := pod.Spec.SecurityContext
	if p == nil {
		return out
	}
	if out.RunAsUser == nil {
		out.RunAsUser = p.RunAsUser
	}
	if out.RunAsGroup == nil {
		out.RunAsGroup = p.RunAsGroup
	}
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = p.RunAsNonRoot
	}
	if out.SELinuxOptions == nil {
		out.SELinuxOptions = p.SELinuxOptions
	}
	if out.SeccompProfile == nil {
		out.SeccompProfile = p.SeccompProfile
	}
	if out.AppArmorProfile == nil {
		out.AppArmorProfile = p.AppArmorProfile
	}
	return out
}

func containerSecurity(pod *v1.Pod, c *v1.Container, image *runtimeapi.Image, p Process) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := effective(pod, c)
	if err := nonRoot(pod, c, sc, image); err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:         namespaces(pod),
		Privileged:               sc.Privileged != nil && *sc.Privileged,
		ReadonlyRootfs:           sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem,
		NoNewPrivs:               sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		RunAsUser:                int64Value(sc.RunAsUser),
		RunAsGroup:               int64Value(sc.RunAsGroup),
		SelinuxOptions:           selinux(sc.SELinuxOptions),
		SupplementalGroups:       groups(pod),
		SupplementalGroupsPolicy: groupsPolicy(pod),
		Capabilities:             capabilities(sc.Capabilities),
	}
	if sc.ProcMount == nil || *sc.ProcMount != v1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths(), readOnlyPaths
	}
	if out.RunAsUser == nil {
		out.RunAsUser, out.RunAsUsername = image.GetUid(), image.GetUsername()
	}
	if p.Target != "" && out.NamespaceOptions.Pid == runtimeapi.NamespaceMode_CONTAINER {
		out.NamespaceOptions.Pid, out.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, p.Target
	}
	var err error
	if out.Seccomp, err = seccomp(sc.SeccompProfile, p.SeccompDir); err != nil {
		return nil, err
	}
	out.Apparmor, err = appArmor(sc.AppArmorProfile)
	return out, err
}

func capabilities(c *v1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, name := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(name))
	}
	for _, name := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(name))
	}
	return out
}

// nonRoot rejects a container that must not run as root and would, or might.
func nonRoot(pod *v1.Pod, c *v1.Container, sc v1.SecurityContext, image *runtimeapi.Image) error {
	if sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), c.Name)
	switch uid := image.GetUid(); {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
	case sc.RunAsUser != nil:
	case uid == nil && image.GetUsername() != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", image.GetUsername(), where)
	case uid == nil || uid.Value == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	}
	return nil
}

func seccomp(p *v1.SeccompProfile, dir string) (*runtimeapi.SecurityProfile, error) {
	out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	switch {
	case p == nil:
	case p.Type == v1.SeccompProfileTypeRuntimeDefault:
		out.ProfileType = runtimeapi.SecurityProfile_RuntimeDefault
	case p.Type == v1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost")
		}
		if !filepath.IsLocal(*p.LocalhostProfile) {
			return nil, fmt.Errorf("localhostProfile %q: must be a path below %s", *p.LocalhostProfile, dir)
		}
		out.ProfileType = runtimeapi.SecurityProfile_Localhost
		out.LocalhostRef = filepath.Join(dir, *p.LocalhostProfile)
	}
	return out, nil
}

func appArmor(p *v1.AppArmorProfile) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case v1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile != nil {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}, nil
		}
		return nil, errors.New("missing localhost apparmor profile name")
	}
	return nil, fmt.Errorf("unknown apparmor profile type: %q", p.Type)
}
