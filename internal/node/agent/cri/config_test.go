package cri

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

func podOf(t *testing.T, text string) *v1.Pod {
	t.Helper()
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: p, namespace: ns, uid: u, labels: {app: x}}\n"+text), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestSandboxConfig(t *testing.T) {
	r := &Runtime{Node: "n"}
	pod := podOf(t, `
spec:
  hostPID: true
  securityContext: {runAsUser: 5, fsGroup: 7, supplementalGroups: [8], sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]}
  initContainers: [{name: side, restartPolicy: Always, ports: [{containerPort: 9, hostPort: 99, protocol: UDP}]}]
  containers: [{name: c, securityContext: {privileged: true}, ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}, {containerPort: 81}]}]
`)
	config, err := r.SandboxConfig(pod, 2, Place{CgroupParent: "/kubepods/podu", LogDir: "/logs", Hostname: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if config.Metadata.Attempt != 2 || config.LogDirectory != "/logs/ns_p_u" || config.Hostname != "p" || config.Linux.CgroupParent != "/kubepods/podu" {
		t.Errorf("config: %+v", config)
	}
	for key, want := range map[string]string{"app": "x", "io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u"} {
		if config.Labels[key] != want {
			t.Errorf("label %s: %q", key, config.Labels[key])
		}
	}
	if config.Annotations["berth.dev/node"] != "n" {
		t.Errorf("annotations: %v", config.Annotations)
	}
	if len(config.PortMappings) != 2 || config.PortMappings[0].Protocol != runtimeapi.Protocol_UDP || config.PortMappings[1].HostIp != "127.0.0.1" {
		t.Errorf("port mappings: %v", config.PortMappings)
	}
	sc := config.Linux.SecurityContext
	ns := sc.NamespaceOptions
	if !sc.Privileged || sc.RunAsUser.Value != 5 || len(sc.SupplementalGroups) != 2 || config.Linux.Sysctls["kernel.shm_rmid_forced"] != "1" ||
		ns.Pid != runtimeapi.NamespaceMode_NODE || ns.Network != runtimeapi.NamespaceMode_POD || ns.Ipc != runtimeapi.NamespaceMode_POD {
		t.Errorf("security: %+v, sysctls %v", sc, config.Linux.Sysctls)
	}
	pod.Spec.HostUsers = new(bool)
	if _, err := r.SandboxConfig(pod, 0, Place{}); err == nil {
		t.Error("a user namespace was promised")
	}
}

func TestContainerSecurity(t *testing.T) {
	root := &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 0}}
	named := &runtimeapi.Image{Username: "web"}
	for _, c := range []struct {
		spec  string
		image *runtimeapi.Image
		want  string // of the error
	}{
		{"spec: {containers: [{name: c}]}", root, ""},
		{"spec: {securityContext: {runAsNonRoot: true}, containers: [{name: c}]}", root, "container has runAsNonRoot and image will run as root"},
		{"spec: {securityContext: {runAsNonRoot: true}, containers: [{name: c}]}", &runtimeapi.Image{}, "container has runAsNonRoot and image will run as root"},
		{"spec: {securityContext: {runAsNonRoot: true}, containers: [{name: c}]}", named, "image has non-numeric user (web), cannot verify user is non-root"},
		{"spec: {securityContext: {runAsNonRoot: true, runAsUser: 0}, containers: [{name: c}]}", root, "container's runAsUser breaks non-root policy"},
		{"spec: {securityContext: {runAsNonRoot: true, runAsUser: 0}, containers: [{name: c, securityContext: {runAsUser: 3}}]}", root, ""},
		{"spec: {containers: [{name: c, securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../../etc/x}}}]}", root, "must be a path below /seccomp"},
		{"spec: {containers: [{name: c, securityContext: {seccompProfile: {type: Localhost, localhostProfile: a/b.json}}}]}", root, ""},
	} {
		pod := podOf(t, c.spec)
		_, err := containerSecurity(pod, &pod.Spec.Containers[0], c.image, Process{SeccompDir: "/seccomp"})
		if got := ""; err != nil || c.want != "" {
			if err != nil {
				got = err.Error()
			}
			if c.want == "" || !strings.Contains(got, c.want) {
				t.Errorf("%s: %q, want %q", c.spec, got, c.want)
			}
		}
	}
	pod := podOf(t, "spec: {containers: [{name: c, securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {add: [NET_ADMIN], drop: [ALL]}}}]}")
	sc, err := containerSecurity(pod, &pod.Spec.Containers[0], named, Process{})
	if err != nil {
		t.Fatal(err)
	}
	if !sc.NoNewPrivs || !sc.ReadonlyRootfs || sc.RunAsUsername != "web" || len(sc.MaskedPaths) == 0 || len(sc.ReadonlyPaths) == 0 ||
		sc.Capabilities.AddCapabilities[0] != "NET_ADMIN" || sc.Capabilities.DropCapabilities[0] != "ALL" ||
		sc.Seccomp.ProfileType != runtimeapi.SecurityProfile_Unconfined {
		t.Errorf("security: %+v", sc)
	}
}

func TestContainerConfig(t *testing.T) {
	pod := podOf(t, "spec: {containers: [{name: c, image: x, stdin: true, tty: true, workingDir: /w, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, lifecycle: {stopSignal: SIGINT}}]}")
	config, err := (&Runtime{}).ContainerConfig(pod, &pod.Spec.Containers[0], 3, &runtimeapi.Image{}, Process{ImageRef: "sha256:1"})
	if err != nil {
		t.Fatal(err)
	}
	if config.LogPath != "c/3.log" || config.Metadata.Attempt != 3 || config.Image.Image != "sha256:1" || !config.Tty || !config.Stdin ||
		config.StopSignal != runtimeapi.Signal_SIGINT || config.Annotations["io.kubernetes.container.restartCount"] != "3" ||
		config.Labels["io.kubernetes.container.name"] != "c" {
		t.Errorf("config: %+v", config)
	}
}

func TestLastWords(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := write("secret", "not for everybody")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	linked, pipe := filepath.Join(dir, "linked"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.Symlink(dir, linked), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	log := write("log", "2026-01-01T00:00:00.0Z stdout F one\n2026-01-01T00:00:00.0Z stderr P tw\n2026-01-01T00:00:00.0Z stderr F o\nrubbish\n")
	for _, c := range []struct {
		file, policy string
		code         int32
		want         string
	}{
		{write("message", "bye"), "File", 1, "bye"},
		{write("long", strings.Repeat("x", 5000)), "File", 1, strings.Repeat("x", 4096)},
		{write("empty", ""), "FallbackToLogsOnError", 1, "one\ntwo\n"},
		{write("empty", ""), "FallbackToLogsOnError", 0, ""},
		{write("empty", ""), "File", 1, ""},
		{link, "File", 1, ""},
		{filepath.Join(linked, "secret"), "File", 1, ""},
		{pipe, "File", 1, ""},
		{filepath.Join(dir, "missing"), "File", 1, ""},
	} {
		got := lastWords(&runtimeapi.ContainerStatus{
			ExitCode: c.code, LogPath: log, Mounts: []*runtimeapi.Mount{{ContainerPath: "/m", HostPath: c.file}},
			Annotations: map[string]string{annotationMessagePath: "/m", annotationMessagePolicy: c.policy},
		})
		if got != c.want {
			t.Errorf("%s %s %d: %q, want %q", filepath.Base(c.file), c.policy, c.code, got, c.want)
		}
	}
}

// A container replaces its termination message by a link to a file of the machine, and back, while
// the agent reads it.
func TestLastWordsFollowNoLinkThatIsSwappedIn(t *testing.T) {
	dir := t.TempDir()
	message, secret := filepath.Join(dir, "message"), filepath.Join(dir, "secret")
	if err := errors.Join(os.WriteFile(message, []byte("bye"), 0o600), os.WriteFile(secret, []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for next := filepath.Join(dir, "next"); ; {
			select {
			case <-stop:
				return
			default:
			}
			if os.Symlink(secret, next) != nil || os.Rename(next, message) != nil ||
				os.WriteFile(next, []byte("bye"), 0o600) != nil || os.Rename(next, message) != nil {
				return
			}
		}
	}()
	read := map[string]int{}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		read[fileEnd("/", message, maxMessage, 0)]++
	}
	close(stop)
	<-stopped
	if read["secret"] > 0 || read["bye"] == 0 {
		t.Errorf("read: %v", read)
	}
}
