package cri

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Process is what a container gets from elsewhere: its command line, environment, mounts, and
// resources.
type Process struct {
	ImageRef      string
	Command, Args []string
	Env           []*runtimeapi.KeyValue
	Mounts        []*runtimeapi.Mount
	Devices       []*runtimeapi.Device
	CDI           []*runtimeapi.CDIDevice
	// Annotations are added to the kubelet's, which take precedence.
	Annotations map[string]string
	Resources   *runtimeapi.LinuxContainerResources
	// SeccompDir is where profiles named Localhost are.
	SeccompDir string
	// Target is the container whose processes an ephemeral container is to see.
	Target string
}

// LogPath is the path of a container's log, below the folder of its pod's logs.
func LogPath(container string, attempt int) string {
	return filepath.Join(container, strconv.Itoa(attempt)+".log")
}

// ContainerConfig configures a container's attempt-th run.
func (r *Runtime) ContainerConfig(pod *v1.Pod, c *v1.Container, attempt int, image *runtimeapi.Image, p Process) (*runtimeapi.ContainerConfig, error) {
	security, err := containerSecurity(pod, c, image, p)
	if err != nil {
		return nil, err
	}
	annotations := map[string]string{}
	maps.Copy(annotations, p.Annotations)
	maps.Copy(annotations, containerAnnotations(pod, c, attempt))
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(attempt)},
		Image:       &runtimeapi.ImageSpec{Image: p.ImageRef, UserSpecifiedImage: c.Image},
		Command:     p.Command,
		Args:        p.Args,
		WorkingDir:  c.WorkingDir,
		Envs:        p.Env,
		Mounts:      p.Mounts,
		Devices:     p.Devices,
		CDIDevices:  p.CDI,
		Labels:      containerLabels(pod, c),
		Annotations: annotations,
		LogPath:     LogPath(c.Name, attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: p.Resources, SecurityContext: security},
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		config.StopSignal = runtimeapi.Signal(runtimeapi.Signal_value[string(*c.Lifecycle.StopSignal)])
	}
	return config, nil
}

// MakeLogs creates the folder for a container's logs.
func MakeLogs(logDir string, pod *v1.Pod, container string) error {
	if err := os.MkdirAll(filepath.Join(PodLogs(logDir, pod), container), 0o755); err != nil {
		return fmt.Errorf("create container log directory for container %s failed: %w", container, err)
	}
	return nil
}
