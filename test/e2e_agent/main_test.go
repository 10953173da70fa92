package e2eagent

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/test/internal/binaries"
)

// long has the tests do more of the same: all ten moments of a kill, 110 pods at once, the whole
// curve of a back-off.
var long = flag.Bool("long", false, "the long forms: more kills, 110 pods, more steps of back-off (about ten minutes)")

// work is the folder of everything that the tests make besides containerds.
var work string

// bin is the folder of the binaries under test.
var bin string

// atEnd is done when all tests are, last one first.
var atEnd []func()

func TestMain(m *testing.M) {
	if described := os.Getenv(csiDriver); described != "" {
		runDriver(described)
	}
	flag.Parse()
	// Tests here wait more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := func() int {
		var err error
		if work, err = os.MkdirTemp("", "berth-e2e-agent-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(work)
		defer func() {
			for i := len(atEnd) - 1; i >= 0; i-- {
				atEnd[i]()
			}
		}()
		// Nothing of the user's may be reached: not their cluster, not their cache.
		os.Unsetenv("KUBECONFIG")
		os.Unsetenv("BERTH_DATA_DIR")
		os.Setenv("HOME", work)
		return m.Run()
	}()
	os.Exit(code)
}

// cluster is what `berth up --nodes 0` started, once for all tests.
type cluster struct {
	dir        string
	kubeconfig string
	client     kubernetes.Interface
	process    *process
}

var theCluster = sync.OnceValues(func() (*cluster, error) {
	c, err := startCluster("cluster")
	if err == nil {
		atEnd = append(atEnd, func() {
			if err := c.process.stop(); err != nil {
				fmt.Fprintln(os.Stderr, "the cluster:", err)
			}
		})
	}
	return c, err
})

func startCluster(name string) (*cluster, error) {
	if err := build(); err != nil {
		return nil, err
	}
	c := &cluster{dir: filepath.Join(work, name)}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	c.process = newProcess(filepath.Join(bin, "berth"), "up", "--data-dir", c.dir, "--nodes", "0")
	if err := c.process.start("Berth is up"); err != nil {
		return nil, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	c.client, err = kubernetes.NewForConfig(cfg)
	return c, err
}

var build = sync.OnceValue(func() (err error) {
	bin, err = binaries.In(work, "../..")
	return err
})

// mustRunContainers is for tests of `berth up --agent`, which starts a containerd of its own: it
// skips them where that cannot be.
func mustRunContainers(t *testing.T) {
	t.Helper()
	if reason := containerd.Impossible(); reason != "" {
		t.Skip("no containers can be run here: " + reason)
	}
	if err := containerd.Install(t.Context()); err != nil {
		t.Skip("what runs containers cannot be installed here: " + err.Error())
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
}

// patience with everything: the machine may be busy with other tests.
const patience = 2 * time.Minute

// eventually waits until the function has no error any more.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not within %s: %v", what, patience, err)
}

var errNotYet = errors.New("not yet")
