package env

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// TestText runs testdata/*.txt:
//
//	cluster                  forget everything
//	configmap|secret|service an object, as YAML (a secret with stringData)
//	file VOLUME/PATH         a file of a volume
//	node cpu=Q memory=Q ip=A what the node has
//	container [pod-ip=A,B]   a pod as YAML: what its first container is started with
//	expand A=b ...           each line of the input expanded
//	subpath A=b ...          likewise, as subPathExpr
//	hosts [pod-ip=A,B] [domain=D]
//	dns [cluster=A,B] [domain=D]     a pod as YAML, below the node's resolv.conf and a line of dashes
func TestText(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		c := &cluster{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return c.do(t, d) })
	})
}

type cluster struct {
	configMaps  map[string]*v1.ConfigMap
	secrets     map[string]*v1.Secret
	services    []*v1.Service
	files       map[string]string
	allocatable v1.ResourceList
	hostIPs     []string
}

func (c *cluster) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "cluster":
		*c = cluster{configMaps: map[string]*v1.ConfigMap{}, secrets: map[string]*v1.Secret{}, files: map[string]string{}}
	case "configmap":
		object := parse[v1.ConfigMap](t, d.Input)
		c.configMaps[object.Namespace+"/"+object.Name] = object
	case "secret":
		object := parse[v1.Secret](t, d.Input)
		object.Data = map[string][]byte{}
		for key, value := range object.StringData {
			object.Data[key] = []byte(value)
		}
		c.secrets[object.Namespace+"/"+object.Name] = object
	case "service":
		c.services = append(c.services, parse[v1.Service](t, d.Input))
	case "file":
		c.files[d.CmdArgs[0].Key] = d.Input
	case "node":
		c.allocatable = v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(word(d, "cpu")), v1.ResourceMemory: resource.MustParse(word(d, "memory")),
		}
		c.hostIPs = words(d, "ip")
	case "container":
		pod := parse[v1.Pod](t, d.Input)
		process, err := Resolve(pod, &pod.Spec.Containers[0], c.sources(pod, words(d, "pod-ip")))
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		return show(process)
	case "expand", "subpath":
		return expansions(d)
	case "hosts":
		pod := parse[v1.Pod](t, d.Input)
		host, domain, err := Hostname(pod, word(d, "domain"))
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		kernel, err := KernelHostname(pod, host, domain)
		if err != nil {
			kernel = "error: " + err.Error()
		}
		return "hostname: " + kernel + "\n" + string(Hosts(pod, words(d, "pod-ip"), host, domain, []byte("192.0.2.9\tnode\n")))
	case "dns":
		return c.dns(t, d)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

func (c *cluster) sources(pod *v1.Pod, podIPs []string) Sources {
	return Sources{
		ConfigMap: func(namespace, name string) (*v1.ConfigMap, error) {
			if object := c.configMaps[namespace+"/"+name]; object != nil {
				return object, nil
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
		},
		Secret: func(namespace, name string) (*v1.Secret, error) {
			if object := c.secrets[namespace+"/"+name]; object != nil {
				return object, nil
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
		},
		Services: func() ([]*v1.Service, error) { return c.services, nil },
		VolumeFile: func(volume, path string) ([]byte, error) {
			if content, ok := c.files[volume+"/"+path]; ok {
				return []byte(content), nil
			}
			return nil, fmt.Errorf("no such file")
		},
		Allocatable: c.allocatable, HostIPs: c.hostIPs, PodIPs: podIPs,
	}
}

func (c *cluster) dns(t *testing.T, d *datadriven.TestData) string {
	file, manifest, _ := strings.Cut(d.Input, "\n---\n")
	host, err := ParseResolvConf(strings.NewReader(file))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	dns, warnings := Resolver{ClusterDNS: words(d, "cluster"), ClusterDomain: word(d, "domain"), Host: host}.For(parse[v1.Pod](t, manifest))
	var out strings.Builder
	fmt.Fprintf(&out, "nameservers: %s\nsearch: %s\noptions: %s\n", strings.Join(dns.Servers, " "), strings.Join(dns.Searches, " "), strings.Join(dns.Options, " "))
	for _, warning := range warnings {
		fmt.Fprintf(&out, "%s: %s\n", warning.Reason, warning.Message)
	}
	return out.String()
}

func expansions(d *datadriven.TestData) string {
	values, vars := map[string]string{}, []Variable(nil)
	for _, arg := range d.CmdArgs {
		values[arg.Key] = strings.Join(arg.Vals, ",")
		vars = append(vars, Variable{arg.Key, values[arg.Key]})
	}
	var out strings.Builder
	for line := range strings.Lines(d.Input) {
		line = strings.TrimSuffix(line, "\n")
		got := expand(line, known(values))
		if d.Cmd == "subpath" {
			path, err := SubPath(v1.VolumeMount{SubPathExpr: line}, vars)
			if got = path; err != nil {
				got = "error: " + err.Error()
			}
		}
		fmt.Fprintf(&out, "%s\n", got)
	}
	return out.String()
}

func show(process Process) string {
	var out strings.Builder
	if len(process.Command) > 0 {
		fmt.Fprintf(&out, "command: %q\n", process.Command)
	}
	if len(process.Args) > 0 {
		fmt.Fprintf(&out, "args: %q\n", process.Args)
	}
	for _, variable := range process.Env {
		if strings.ContainsAny(variable.Value, "\n\t") {
			fmt.Fprintf(&out, "%s=%q\n", variable.Name, variable.Value)
			continue
		}
		fmt.Fprintf(&out, "%s=%s\n", variable.Name, variable.Value)
	}
	return out.String()
}

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func word(d *datadriven.TestData, key string) string {
	if all := words(d, key); len(all) > 0 {
		return all[0]
	}
	return ""
}

func words(d *datadriven.TestData, key string) []string {
	i := slices.IndexFunc(d.CmdArgs, func(arg datadriven.CmdArg) bool { return arg.Key == key })
	if i < 0 {
		return nil
	}
	return strings.Split(strings.Join(d.CmdArgs[i].Vals, ","), ",")
}
