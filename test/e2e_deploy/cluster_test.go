// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/binaries"
)

// bin is the folder of the binaries under test.
var bin string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	work, err := os.MkdirTemp("", "berth-e2e-deploy-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	if bin, err = binaries.BuildIn(work, "../.."); err != nil {
		return 0, err
	}
	// The tests must not use the user's cluster or cache.
	os.Unsetenv("KUBECONFIG")
	os.Unsetenv("BERTH_DATA_DIR")
	os.Setenv("HOME", work)
	return m.Run(), nil
}

// cluster is a control plane with upstream's admission plugins instead of Berth's, as in most
// clusters.
type cluster struct {
	*testing.T
	Config     *rest.Config // administrator's configuration
	Kubeconfig string       // path of the administrator's kubeconfig
	api        kubernetes.Interface
}

// startLimit is generous, because a machine that runs many tests concurrently is slow.
const startLimit = 2 * time.Minute

func newCluster(t *testing.T, flags ...string) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	running, err := (&driver.Run{Bin: bin, Dir: t.TempDir()}).StartCluster(ctx, append(flags, "--upstream-admission")...)
	if err != nil {
		t.Fatalf("control plane: %v", err)
	}
	t.Cleanup(running.Stop)
	config, err := clientcmd.BuildConfigFromFlags("", running.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	c := &cluster{T: t, Config: config, Kubeconfig: running.Kubeconfig, api: kubernetes.NewForConfigOrDie(config)}
	eventually(t, func() error { // until then, the ServiceAccount admission plugin rejects all pods
		_, err := c.api.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return c
}

// simulate runs simulated nodes node-1, node-2 and so on until the test ends.
func (c *cluster) simulate(count int) {
	c.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	c.T.Cleanup(func() { cancel(); running.Wait() })
	ready := make(chan struct{})
	running.Go(func() {
		err := simnodes.Run(ctx, c.api, simnodes.Options{
			Shape: simkubelet.Shape{
				Prefix: "node-", Count: count, Zones: 3, Region: "r1", Capacity: simkubelet.DefaultCapacity(), Version: binaries.Kubernetes,
				RenewInterval: simkubelet.RenewIntervalFor(count), StatusInterval: 5 * time.Minute, JobRunFor: time.Second,
			},
			Workers: 8, Log: slog.New(slog.DiscardHandler), Ready: func(int, time.Duration) { close(ready) },
		})
		if err != nil && ctx.Err() == nil {
			c.T.Errorf("simulated nodes ended: %v", err)
		}
	})
	select {
	case <-ready:
	case <-time.After(time.Minute):
		c.Fatal("the simulated nodes are not there after a minute")
	}
}

// kubectl runs the built-in kubectl and returns its output.
func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.tryKubectl("", args...)
	if err != nil {
		c.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) tryKubectl(input string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"kubectl", "--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) apply(manifests string, args ...string) string {
	c.Helper()
	out, err := c.tryKubectl(manifests, append([]string{"apply", "-f", "-"}, args...)...)
	if err != nil {
		c.Fatalf("kubectl apply %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// rendered returns the stored manifests of a chart's rendering. The tests of deploy/pack verify
// that they equal the kustomization's.
func rendered(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy/pack/testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// prepare creates the prerequisites of the manifests: the namespace as in the kustomization, and
// the CustomResourceDefinitions of the Prometheus operator, here without schemas.
func (c *cluster) prepare() {
	c.Helper()
	c.kubectl("apply", "--server-side", "-f", "../../deploy/kustomize/base/namespace.yaml")
	for plural, kind := range map[string]string{"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"} {
		c.apply(fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {plural: %[1]s, singular: %[2]s, kind: %[3]s}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, plural, strings.ToLower(kind), kind))
		c.kubectl("wait", "--for=condition=Established", "crd/"+plural+".monitoring.coreos.com", "--timeout=60s")
	}
}

// install prepares the cluster and applies the manifests.
func (c *cluster) install(name string) {
	c.Helper()
	c.prepare()
	c.apply(rendered(c.T, name))
}

// token returns a token of a ServiceAccount in Berth's namespace.
func (c *cluster) token(account string) string {
	c.Helper()
	return c.tokenIn(deploy.Namespace, account)
}

func (c *cluster) tokenIn(namespace, account string) string {
	c.Helper()
	request, err := c.api.CoreV1().ServiceAccounts(namespace).CreateToken(c.T.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.Fatalf("token of %s: %v", account, err)
	}
	return request.Status.Token
}

// as returns a client configuration whose only credential is a token.
func (c *cluster) as(token string) *rest.Config {
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken, config.QPS = token, -1
	return config
}

// kubeconfig writes a kubeconfig with a token, for the API server behind a recorder.
func kubeconfig(t testing.TB, r *recorder, token string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: r.url, CertificateAuthorityData: r.authority}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

const patience = 90 * time.Second

// eventually calls ask until ask returns nil, and fails the test after a timeout.
func eventually(t testing.TB, ask func() error) {
	t.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = ask()
		return last == nil, nil
	}); err != nil {
		t.Fatalf("after %v still: %v", patience, last)
	}
}

// text collects a process's output.
type text struct {
	mu  sync.Mutex
	all strings.Builder
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.String()
}

var _ io.Writer = (*text)(nil)
