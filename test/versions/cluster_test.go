// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// cluster is the control plane of a release, as processes, with Berth instead of its scheduler and
// two of its controllers. Each promise has a copy with a separate test and namespace.
type cluster struct {
	*testing.T
	release   string
	bin       string // folder of the release's programs
	berth     string // folder of Berth's programs
	dir       string // logs, keys, kubeconfigs
	namespace string // namespace of the promise; empty while the cluster starts
	note      func(string)

	server, authority string
	kubeconfig        string // kubeconfig of the administrator
	client            kubernetes.Interface
	processes         *[]*process // all started processes, in order
	parts             *parts
}

const (
	administrator     = "administrator"
	controllerManager = "system:kube-controller-manager"
	kubeScheduler     = "system:kube-scheduler"
)

// start starts etcd, the API server, and the controllers that Berth does not replace.
func start(t *testing.T, release, bin, berth, dir string, flags ...string) *cluster {
	t.Helper()
	c := startPlane(t, release, bin, berth, dir, flags...)
	c.beginControllers("--controllers=*,-node-lifecycle-controller,-taint-eviction-controller")
	return c
}

// startPlane starts etcd and the API server.
func startPlane(t *testing.T, release, bin, berth, dir string, flags ...string) *cluster {
	t.Helper()
	c := &cluster{T: t, release: release, bin: bin, berth: berth, dir: dir, processes: &[]*process{}, parts: &parts{}}
	t.Cleanup(c.stop)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.startAPI(flags)
	return c
}

// beginControllers starts the release's kube-controller-manager, and waits until pods can be
// created.
func (c *cluster) beginControllers(flags ...string) {
	c.Helper()
	c.begin("kube-controller-manager", filepath.Join(c.bin, "kube-controller-manager"), append([]string{
		"--kubeconfig", c.kubeconfigOf(controllerManager, c.token(controllerManager)), "--leader-elect=false", "--secure-port=0",
		"--use-service-account-credentials",
		"--service-account-private-key-file", c.path("service-accounts.key"), "--root-ca-file", c.authority,
	}, flags...)...)
	c.eventually(func() error {
		_, err := c.client.CoreV1().ServiceAccounts("default").Get(c.Context(), "default", metav1.GetOptions{})
		return err
	})
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// startAPI starts etcd and the API server with RBAC, token authentication and a self-signed
// certificate, and waits until the API server is ready.
func (c *cluster) startAPI(flags []string) {
	c.Helper()
	ports := c.freePorts(3)
	store := "http://127.0.0.1:" + ports[0]
	c.begin("etcd", filepath.Join(c.bin, "etcd"), "--data-dir", c.path("etcd"), "--listen-client-urls", store, "--listen-peer-urls", "http://127.0.0.1:"+ports[1])
	c.writeTokens(administrator+`,1,"system:masters"`, controllerManager+",2", kubeScheduler+",3")
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		c.Fatal(err)
	}
	keys := c.path("service-accounts.key")
	c.write(keys, key)
	c.server, c.authority = "https://127.0.0.1:"+ports[2], c.path("certificates/apiserver.crt")
	apiServer := c.begin("kube-apiserver", filepath.Join(c.bin, "kube-apiserver"), append([]string{
		"--etcd-servers", store, "--bind-address", "127.0.0.1", "--secure-port", ports[2], "--cert-dir", c.path("certificates"),
		// Loopback addresses are not permitted as the advertised address; this unused address is
		// reserved for documentation.
		"--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none",
		"--service-cluster-ip-range", "10.96.0.0/24", "--authorization-mode", "RBAC", "--token-auth-file", c.path("tokens.csv"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keys, "--service-account-signing-key-file", keys,
	}, flags...)...)
	c.kubeconfig = c.kubeconfigOf(administrator, c.token(administrator))
	c.eventually(func() error {
		select {
		case <-apiServer.ended:
			return fatal{fmt.Errorf("kube-apiserver has ended:\n%s", last(apiServer.said(), 20))}
		default:
		}
		return c.connect()
	})
}

// connect creates the client. It returns an error if the server's certificate does not exist yet or
// the server is not ready.
func (c *cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	status := 0
	if err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(c.Context()).StatusCode(&status).Error(); status != http.StatusOK {
		return errors.Join(err, fmt.Errorf("/readyz: %d", status))
	}
	return nil
}

// writeTokens writes the API server's token file with a random token for each user.
func (c *cluster) writeTokens(users ...string) {
	c.Helper()
	var lines strings.Builder
	for _, user := range users {
		name, rest, _ := strings.Cut(user, ",")
		secret := make([]byte, 16)
		_, _ = rand.Read(secret) // never fails
		fmt.Fprintf(&lines, "%s,%s,%s\n", hex.EncodeToString(secret), name, rest)
	}
	c.write(c.path("tokens.csv"), []byte(lines.String()))
}

// token returns the token of a user in the API server's token file.
func (c *cluster) token(user string) string {
	c.Helper()
	text, err := os.ReadFile(c.path("tokens.csv"))
	if err != nil {
		c.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(line, ","); fields[1] == user {
			return fields[0]
		}
	}
	c.Fatalf("%s has no token", user)
	return ""
}

func (c *cluster) kubeconfigOf(user, token string) string {
	c.Helper()
	path := c.path(strings.ReplaceAll(user, ":", "-") + ".kubeconfig")
	if err := clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"c": {Server: c.server, CertificateAuthority: c.authority}},
		AuthInfos:      map[string]*api.AuthInfo{"u": {Token: token}},
		Contexts:       map[string]*api.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "c",
	}, path); err != nil {
		c.Fatal(err)
	}
	return path
}

func (c *cluster) write(path string, content []byte) {
	c.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		c.Fatal(err)
	}
}

// stop stops all processes, the last one first.
func (c *cluster) stop() {
	for i := len(*c.processes) - 1; i >= 0; i-- {
		(*c.processes)[i].stop()
	}
	*c.processes = nil
}

// in returns the same cluster for a subtest, with a temporary namespace.
func (c *cluster) in(t *testing.T, namespace string) *cluster {
	t.Helper()
	at := *c
	at.T, at.namespace = t, namespace
	at.kubectl("create", "namespace", namespace)
	t.Cleanup(func() {
		_, _ = at.tryKubectl("", "delete", "pods", "--all", "--now", "--wait=false")
		_, _ = at.tryKubectl("", "delete", "namespace", namespace, "--wait=false")
	})
	at.eventually(func() error {
		_, err := at.client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return &at
}

func (c *cluster) freePorts(n int) (ports []string) {
	c.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			c.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	return ports
}

// patience limits the wait for short operations. It is generous, because the machine may be busy.
var patience = 90 * time.Second

func init() {
	flag.DurationVar(&patience, "patience", patience, "how long to wait for what takes a moment")
}

// fatal is an error that ends eventually immediately.
type fatal struct{ error }

// eventually calls ask until ask returns nil, and fails the test after a timeout.
func (c *cluster) eventually(ask func() error) {
	c.Helper()
	c.within(patience, ask)
}

func (c *cluster) within(limit time.Duration, ask func() error) {
	c.Helper()
	var complaint error
	err := wait.PollUntilContextTimeout(c.Context(), 100*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		complaint = ask()
		if end, ok := complaint.(fatal); ok {
			return false, end
		}
		return complaint == nil, nil
	})
	if err != nil {
		c.Fatalf("after %v still: %v", limit, complaint)
	}
}
