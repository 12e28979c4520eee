package natsd

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// StoreErr says which streams can no longer be written, nil while all can. The server finds out at a write, answers it with
// silence, and then refuses every further one until Restart, also when there is space again. So it is worth asking after a
// write to each stream, which is the caller's to make.
func (s *Server) StoreErr() error {
	ns := s.server()
	if !ns.Running() {
		return errors.New("broker is stopped")
	}
	var all []error
	for _, e := range ns.Healthz(&server.HealthzOptions{Details: true}).Errors {
		all = append(all, fmt.Errorf("%s", e.Error))
	}
	return errors.Join(all...)
}
