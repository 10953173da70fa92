package e2eagent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	certutil "k8s.io/client-go/util/cert"
	clientexec "k8s.io/client-go/util/exec"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// who are those that ask the node itself, not through the API server.
type who struct {
	certificate []tls.Certificate
	token       string
}

func TestTheNodesAPILetsNobodyInWhoMayNot(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, idlePod)
	n.apply(t, ns, strings.ReplaceAll(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-reader}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: node-reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NS-metrics}
rules: [{apiGroups: [""], resources: [nodes/metrics, nodes/stats, nodes/pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NS-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NS-metrics}
subjects: [{kind: ServiceAccount, name: metrics-reader, namespace: NS}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NS-node}
rules: [{apiGroups: [""], resources: [nodes/proxy], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NS-node}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NS-node}
subjects: [{kind: ServiceAccount, name: node-reader, namespace: NS}]
`, "NS", ns))
	t.Cleanup(func() {
		n.do(t, "delete", "clusterrole,clusterrolebinding", ns+"-metrics", ns+"-node")
	})
	pod := n.awaitPod(t, ns, "idle", "ready", ready)
	token := func(account string) string { return strings.TrimSpace(n.do(t, "-n", ns, "create", "token", account)) }
	admin, err := clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(admin.CertData, admin.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	var (
		nobody    = who{}
		stranger  = who{certificate: []tls.Certificate{selfSigned(t, "berth-admin")}}
		made      = who{token: "made-up"}
		ordinary  = who{token: token("default")}
		reader    = who{token: token("metrics-reader")}
		ofNode    = who{token: token("node-reader")}
		theAdmin  = who{certificate: []tls.Certificate{pair}}
		logs      = "/containerLogs/" + ns + "/idle/main"
		run       = "/exec/" + ns + "/idle/main?command=id&output=1"
		forbidden = "/etc/passwd"
	)
	for _, c := range []struct {
		name string
		who  who
		path string
		want int
	}{
		{"nobody", nobody, "/pods", 401},
		{"nobody", nobody, "/healthz", 401},
		{"nobody", nobody, run, 401},
		{"nobody", nobody, "/no/such/path", 401},
		{"a stranger's certificate", stranger, "/pods", 401},
		{"a made-up token", made, "/pods", 401},
		{"an ordinary service account", ordinary, "/pods", 403},
		{"an ordinary service account", ordinary, logs, 403},
		{"an ordinary service account", ordinary, run, 403},
		{"an ordinary service account", ordinary, "/metrics", 403},
		{"a reader of metrics", reader, "/metrics", 200},
		{"a reader of metrics", reader, "/pods", 200},
		{"a reader of metrics", reader, logs, 403},
		{"a reader of metrics", reader, run, 403},
		{"a reader of metrics", reader, "/configz", 403},
		{"a reader of the node", ofNode, logs, 200},
		{"a reader of the node", ofNode, run, 403},
		{"a reader of the node", ofNode, "/metrics", 403},
		{"the administrator", theAdmin, "/pods", 200},
		{"the administrator", theAdmin, logs, 200},
		{"the administrator", theAdmin, run, 400}, // no upgrade
		{"the administrator", theAdmin, "/containerLogs/" + ns + "/idle/none", 404},
		{"the administrator", theAdmin, "/containerLogs/" + ns + "/none/main", 404},
		{"the administrator", theAdmin, logs + "?previous=true", 400},
		{"the administrator", theAdmin, "/containerLogs/" + ns + "/idle/..", 400},
		{"the administrator", theAdmin, "/containerLogs/" + ns + "/../.." + forbidden, 400},
		{"the administrator", theAdmin, "/containerLogs/" + ns + "/idle/%2e%2e%2f%2e%2e" + forbidden, 400},
		{"the administrator", theAdmin, "/containerLogs/" + ns + "/idle/main%00", 400},
		{"the administrator", theAdmin, "/containerLogs/" + ns + "/idle/%2fetc%2fpasswd", 400},
		{"the administrator", theAdmin, "/logs/../.." + forbidden, 400},
		{"the administrator", theAdmin, "/logs/syslog", 405},
		{"the administrator", theAdmin, "/pods?" + strings.Repeat("x", 1<<20), 431},
	} {
		if code, body := n.ask(t, c.who, c.path); code != c.want {
			t.Errorf("%s, %.80s: %d, wanted %d: %.200s", c.name, c.path, code, c.want, body)
		} else if strings.Contains(body, "root:") {
			t.Errorf("%s, %s: %s", c.name, c.path, body)
		}
	}

	// A token is good for as long as its account is, and the moment for which answers are
	// remembered.
	n.do(t, "-n", ns, "delete", "serviceaccount", "metrics-reader")
	eventually(t, "the token of an account that is gone is refused", func() error {
		if code, _ := n.ask(t, reader, "/metrics"); code != 401 {
			return fmt.Errorf("it is answered with %d", code)
		}
		return nil
	})

	// A log that is led elsewhere, as a pod could that may write there.
	log := filepath.Join(n.dir, "logs", ns+"_idle_"+string(pod.UID), "main", "0.log")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("2026-11-20T14:00:01Z stdout F root: secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, log); err != nil {
		t.Fatal(err)
	}
	if out, err := n.kubectl("-n", ns, "logs", "idle", "-c", "main"); err == nil || strings.Contains(out+err.Error(), "secret") {
		t.Errorf("a linked log: %q, %v", out, err)
	}
}

// ask the node itself.
func (n *node) ask(t *testing.T, by who, path string) (int, string) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: by.certificate}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+n.address(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	// As it is, whatever it is.
	request.URL.Opaque = "//" + request.URL.Host + path
	if by.token != "" {
		request.Header.Set("Authorization", "Bearer "+by.token)
	}
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// address is where the API server would find the node.
func (n *node) address(t *testing.T) string {
	t.Helper()
	found, err := n.client.CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range found.Status.Addresses {
		if address.Type == v1.NodeInternalIP {
			return net.JoinHostPort(address.Address, fmt.Sprint(found.Status.DaemonEndpoints.KubeletEndpoint.Port))
		}
	}
	t.Fatalf("no address: %+v", found.Status.Addresses)
	return ""
}

func selfSigned(t *testing.T, name string) tls.Certificate {
	t.Helper()
	cert, key, err := certutil.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// What monitors read of a node, through the API server as kubectl get --raw does.
func TestReadersOfANode(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, idlePod)
	pod := n.awaitPod(t, ns, "idle", "ready", ready)
	raw := func(path string) string { return n.do(t, "get", "--raw", "/api/v1/nodes/"+n.name+"/proxy"+path) }

	var pods v1.PodList
	if err := json.Unmarshal([]byte(raw("/pods")), &pods); err != nil || !slices.ContainsFunc(pods.Items, func(p v1.Pod) bool { return p.UID == pod.UID && p.Status.Phase == v1.PodRunning }) {
		t.Errorf("/pods: %v", err)
	}
	if health := raw("/healthz"); health != "ok" {
		t.Errorf("/healthz: %q", health)
	}
	if config := raw("/configz"); !strings.Contains(config, `"kubeletconfig":{`) || !strings.Contains(config, `"maxPods":`) {
		t.Errorf("/configz: %s", config)
	}
	eventually(t, "the pod's numbers in /stats/summary", func() error {
		var summary stats.Summary
		if err := json.Unmarshal([]byte(raw("/stats/summary")), &summary); err != nil {
			return err
		}
		i := slices.IndexFunc(summary.Pods, func(p stats.PodStats) bool { return p.PodRef.UID == string(pod.UID) })
		if i < 0 || summary.Node.NodeName != n.name || summary.Node.CPU == nil || summary.Node.Memory == nil {
			return fmt.Errorf("%+v", summary)
		}
		if p := summary.Pods[i]; len(p.Containers) != 2 || p.Memory == nil || p.Memory.WorkingSetBytes == nil || *p.Memory.WorkingSetBytes == 0 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	for _, metric := range []string{"node_cpu_usage_seconds_total", "node_memory_working_set_bytes", "pod_memory_working_set_bytes", "container_cpu_usage_seconds_total"} {
		eventually(t, metric, func() error {
			if metrics := raw("/metrics/resource"); !strings.Contains(metrics, "\n"+metric) {
				return errors.New(metrics)
			}
			return nil
		})
	}
	if metrics := raw("/metrics"); !strings.Contains(metrics, "process_cpu_seconds_total") {
		t.Errorf("/metrics: %s", metrics)
	}
}

// Clients that are killed in the middle of something leave nothing behind in the agent.
func TestClientsThatAreKilledLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	n := newNode(t, "left")
	ns := n.namespace(t)
	n.apply(t, ns, idlePod)
	n.awaitPod(t, ns, "idle", "ready", ready)
	goroutines := func() int {
		metrics := n.do(t, "get", "--raw", "/api/v1/nodes/"+n.name+"/proxy/metrics")
		found := regexp.MustCompile(`(?m)^go_goroutines (\d+)$`).FindStringSubmatch(metrics)
		if found == nil {
			t.Fatal(metrics)
		}
		count, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	begin := func() []*exec.Cmd {
		var all []*exec.Cmd
		for _, on := range transports {
			env := []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + on, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + on}
			for _, args := range [][]string{
				{"exec", "-i", "idle", "-c", "main", "--", "sh", "-c", "echo begun; cat"},
				{"logs", "-f", "idle", "-c", "main"},
				{"port-forward", "pod/idle", ":80"},
			} {
				cmd := n.command(context.Background(), env, append([]string{"-n", ns}, args...)...)
				stdin, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = stdin.Close() })
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				all = append(all, cmd)
			}
		}
		return all
	}
	before := goroutines()
	all := begin()
	eventually(t, "they are under way", func() error {
		if now := goroutines(); now < before+len(all) {
			return fmt.Errorf("%d goroutines, %d before", now, before)
		}
		return nil
	})
	for _, cmd := range all {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	eventually(t, "all is as before", func() error {
		// A few more than before are the pod's, and the connection that asks.
		if now := goroutines(); now > before+3 {
			return fmt.Errorf("%d goroutines, %d before", now, before)
		}
		return nil
	})
}

// API servers since v1.36 may hand WebSockets to the node as they are. What it then does with them
// is seen at the node itself.
func TestStreamsAtTheNodeItself(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, idlePod)
	n.awaitPod(t, ns, "idle", "ready", ready)
	config, err := clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Insecure, config.CAData, config.CAFile = true, nil, ""
	url := &url.URL{Scheme: "https", Host: n.address(t), Path: "/exec/" + ns + "/idle/main", RawQuery: "command=sh&command=-c&command=cat%3B+exit+7&input=1&output=1"}
	sent := strings.Repeat("0123456789abcde\n", 1<<16) // 1 MiB
	for name, connect := range map[string]func() (remotecommand.Executor, error){
		"SPDY": func() (remotecommand.Executor, error) { return remotecommand.NewSPDYExecutor(config, "POST", url) },
		"WebSocket": func() (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(config, "GET", url.String())
		},
	} {
		executor, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(sent), Stdout: &out})
		var exit clientexec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 7 || out.String() != sent {
			t.Errorf("%s: %d bytes of %d came back, %v", name, out.Len(), len(sent), err)
		}
	}
}
