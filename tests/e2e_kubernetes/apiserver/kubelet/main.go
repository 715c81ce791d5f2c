// The kubelet's HTTPS port, as far as the API server proxies to it: port-forwards by the kubelet's own streaming code,
// whose pods are addresses that another server knows, and everything else handed on to that server.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubelet/pkg/cri/streaming/portforward"
)

// pods connects to the ports of pods; behind answers GET /podIP/NAME.
type pods struct{ behind string }

func (p pods) PortForward(ctx context.Context, name string, _ types.UID, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	answer, err := http.Get(p.behind + "/podIP/" + name)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	ip, err := io.ReadAll(io.LimitReader(answer.Body, 64))
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("pod %q is not running: %v", name, err)
	}
	connection, err := net.Dial("tcp4", net.JoinHostPort(string(ip), fmt.Sprint(port)))
	if err != nil {
		// As kuberuntime words it.
		return fmt.Errorf("failed to execute portforward in network namespace %q: failed to connect to localhost:%d inside namespace %q, IPv4: %v", "host", port, "x", err)
	}
	defer connection.Close()
	ended := make(chan struct{}, 2)
	for _, ends := range [][2]io.ReadWriter{{connection, stream}, {stream, connection}} {
		go func() { io.Copy(ends[0], ends[1]); ended <- struct{}{} }()
	}
	<-ended
	return nil
}

func main() {
	listen, behind := flag.String("listen", "", "address"), flag.String("behind", "", "URL of the other server")
	certificate, key := flag.String("certificate", "", "file"), flag.String("key", "", "file")
	flag.Parse()
	other, err := url.Parse(*behind)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", httputil.NewSingleHostReverseProxy(other))
	mux.HandleFunc("/portForward/", func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		options, err := portforward.NewV4Options(r)
		if err != nil || len(parts) < 4 {
			http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, pods{*behind}, parts[3], "", options, 4*time.Hour, 30*time.Second, portforward.SupportedProtocols)
	})
	// HTTP/1.1 alone: SPDY is an upgrade of it.
	server := &http.Server{Addr: *listen, Handler: mux, TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	log.Fatal(server.ListenAndServeTLS(*certificate, *key))
}
